#!/bin/bash
# The user "ubuntu" of HyperPod, with its home on the shared file system and a key that opens every node to it.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../lib/common.sh
. "$(dirname "$(readlink -f "$0")")/../lib/common.sh"

# One node does it for all: the home is shared.
if [[ $HP_ROLE != head ]]; then exit 0; fi
home=/home/ubuntu
if [[ ! -e $home ]]; then
	mkdir -m 0755 "$home"
	chown -h ubuntu:ubuntu "$home"
fi
# As the user: what lies in the home is the user's to arrange, so root must not follow names there.
# shellcheck disable=SC2016
setpriv --reuid ubuntu --regid ubuntu --init-groups --reset-env bash -c '
	set -euo pipefail
	umask 077
	home=$1 comment=$2 keys=$3
	if [[ -e $home/.ssh/id_ed25519 ]]; then exit 0; fi
	mkdir -p "$home/.ssh"
	cp -n /etc/skel/.bashrc /etc/skel/.profile "$home/" || true
	rm -f "$home/.ssh/id_ed25519.new" "$home/.ssh/id_ed25519.new.pub"
	ssh-keygen -q -t ed25519 -N "" -C "$comment" -f "$home/.ssh/id_ed25519.new"
	# A key that the cloud has put there (KeyName of an instance) stays.
	{ cat "$home/.ssh/authorized_keys" 2>/dev/null || true; printf "%s\n" "$keys"
		cat "$home/.ssh/id_ed25519.new.pub"; } | awk "!seen[\$0]++" >"$home/.ssh/authorized_keys.new"
	mv "$home/.ssh/authorized_keys.new" "$home/.ssh/authorized_keys"
	mv "$home/.ssh/id_ed25519.new.pub" "$home/.ssh/id_ed25519.pub"
	mv "$home/.ssh/id_ed25519.new" "$home/.ssh/id_ed25519"
' _ "$home" "ubuntu@$HP_CLUSTER" "$(<"$HP_NODE_DIR/authorized_keys")"
