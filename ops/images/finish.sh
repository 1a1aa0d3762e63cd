#!/bin/sh
# Ends the environment of a service's image: installs Quire itself, which lies in this folder, and takes out what no
# process reads: pip, the packages that are named, and the symbols of compiled modules, which only debuggers read
# (uvloop's are 12 MB). Libraries that were changed for their wheels stay as they are, since strip may break them:
# those in folders *.libs, and what comes with torch.
set -eu
python uv.py pip install --no-cache --no-deps .
python uv.py pip uninstall pip "$@"
find /opt/quire -name '*.so' -not -path '*.libs/*' -not -path '*/torch/*' -not -path '*/triton/*' -not -path '*/nvidia/*' \
    -exec strip --strip-unneeded {} +
