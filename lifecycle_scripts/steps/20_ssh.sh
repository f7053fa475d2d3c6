#!/bin/bash
# Host keys that survive a replacement of the machine, and root logins by the cluster's key only.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../lib/common.sh
. "$(dirname "$(readlink -f "$0")")/../lib/common.sh"

hp_ensure "$HP_NODE_DIR/ssh_host_ed25519_key" /etc/ssh/ssh_host_ed25519_key 0600 root
hp_ensure "$HP_NODE_DIR/ssh_host_ed25519_key.pub" /etc/ssh/ssh_host_ed25519_key.pub 0644 root
ln -sfn "$HP_CLUSTER_DIR/known_hosts" /etc/ssh/ssh_known_hosts
install -d -m 0700 /root/.ssh
hp_ensure "$HP_NODE_DIR/authorized_keys" /root/.ssh/authorized_keys 0600 root
systemctl start --no-block ssh.service
