"""What goes on inside a deployment, in the terminal: its gateway tells it, and `view.py` draws it."""

from ops.cli.inside.watch import follow

__all__ = ["follow"]
