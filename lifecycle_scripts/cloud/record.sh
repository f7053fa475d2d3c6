#!/bin/bash
# Sends the record of this machine's birth to the cluster's folder, where the provider looks.
#
# "ok" promises a machine that Slurm can use, so it waits for that; for as long as a head node may take to come up.
set -euo pipefail

HERE=$(dirname "$(readlink -f "$0")")
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$HERE/lib.sh"

result=$ROOT/var/log/provision/result.json
id=$(python3 "$HERE/unpack.py" get "$result" instance_id)
status=$(python3 "$HERE/unpack.py" get "$result" status)
[[ $id == i-* && $status =~ ^[a-z]+$ ]]
# A boot that was cut short has not failed: at a shutdown the record says "running".
if [[ $status == running ]]; then exit 0; fi
# in_slurm: whether Slurm knows this node as one that answers; on the head node, whether slurmctld does.
in_slurm() {
	local shown
	if [[ $HP_ROLE != worker ]]; then timeout 10 scontrol ping 2>/dev/null | grep -q 'is UP'; return; fi
	shown=$(timeout 10 scontrol --oneliner show node "$HP_NODE" 2>/dev/null) || return 1
	[[ $shown =~ \ State=([^ ]+) && ! ${BASH_REMATCH[1]} =~ UNKNOWN|NOT_RESPONDING|\* ]]
}

if [[ $status == ok && -f $ROOT/opt/hyperpod/node/node.env ]]; then
	# shellcheck source=/dev/null
	. "$ROOT/opt/hyperpod/node/node.env"
	deadline=$((SECONDS + ${HP_SLURM_WAIT_S:-300}))
	until in_slurm; do
		if ((SECONDS >= deadline)); then say "warning: this node is born, but Slurm does not know it yet"; break; fi
		sleep 1
	done
fi
for ((try = 1; ; try++)); do
	if aws s3 cp --only-show-errors "$ROOT/var/log/provision/provisioning.log" "$FOLDER/births/$id.log" &&
		aws s3 cp --only-show-errors "$result" "$FOLDER/births/$id.$status"; then
		exit 0
	fi
	if ((try >= 30)); then exit 1; fi
	sleep 10
done
