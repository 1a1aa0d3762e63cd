"""Images of the services, and what is tried with them on an engine."""
