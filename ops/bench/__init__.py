import os

# Some start deployments and receive their traces in one process: see tokenizer_svc/__init__.py.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
