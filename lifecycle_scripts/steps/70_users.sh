#!/bin/bash
# The user "ubuntu" of HyperPod, with its home on the shared file system and a key that opens every node to it.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../lib/common.sh
. "$(dirname "$(readlink -f "$0")")/../lib/common.sh"

# One node does it for all: the home is shared.
if [[ $HP_ROLE != head ]]; then exit 0; fi
home=/home/ubuntu
if [[ ! -e $home/.ssh/id_ed25519 ]]; then
	install -d -m 0755 -o ubuntu -g ubuntu "$home"
	install -d -m 0700 -o ubuntu -g ubuntu "$home/.ssh"
	cp -n /etc/skel/.bashrc /etc/skel/.profile "$home/" || true
	rm -f "$home/.ssh/id_ed25519.new" "$home/.ssh/id_ed25519.new.pub"
	ssh-keygen -q -t ed25519 -N '' -C "ubuntu@$HP_CLUSTER" -f "$home/.ssh/id_ed25519.new"
	cat "$HP_NODE_DIR/authorized_keys" "$home/.ssh/id_ed25519.new.pub" >"$home/.ssh/authorized_keys"
	mv "$home/.ssh/id_ed25519.new.pub" "$home/.ssh/id_ed25519.pub"
	mv "$home/.ssh/id_ed25519.new" "$home/.ssh/id_ed25519"
	chown -R ubuntu:ubuntu "$home"
fi
