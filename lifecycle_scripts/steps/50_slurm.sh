#!/bin/bash
# Slurm's configuration: files on the head node, fetched from it ("configless") everywhere else.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../lib/common.sh
. "$(dirname "$(readlink -f "$0")")/../lib/common.sh"

install -d -m 0755 -o slurm -g slurm /var/log/slurm
if [[ $HP_ROLE == head ]]; then
	install -d -m 0700 -o slurm -g slurm /var/spool/slurmctld
	for name in slurm.conf cgroup.conf plugstack.conf; do
		# At a reboot the spares that have joined a partition stay there.
		if hp_same_slurm_conf "$HP_NODE_DIR/$name" "/etc/slurm/$name"; then continue; fi
		hp_ensure "$HP_NODE_DIR/$name" "/etc/slurm/$name" 0644 root
	done
	exit 0
fi
# A slurm.conf that lies here would win over the head node's.
rm -f /etc/slurm/slurm.conf /etc/slurm/cgroup.conf /etc/slurm/plugstack.conf
if [[ $HP_ROLE == worker ]]; then
	install -d -m 0755 /var/spool/slurmd
	printf 'SLURMD_OPTIONS="--conf-server %s:6817 -N %s --instance-id %s --instance-type %s"\n' \
		"$HP_HEAD_ADDRESS" "$HP_NODE" "$HP_INSTANCE_ID" "$HP_INSTANCE_TYPE" >/etc/default/slurmd
else
	printf 'SACKD_OPTIONS="--conf-server %s:6817"\n' "$HP_HEAD_ADDRESS" >/etc/default/sackd
fi
