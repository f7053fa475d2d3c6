#!/bin/bash
# Every shared mount must be writable and readable before the node takes work; a late one is waited for.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../lib/common.sh
. "$(dirname "$(readlink -f "$0")")/../lib/common.sh"

try_mount() {
	local token probe text=$HP_INSTANCE_ID.$RANDOM
	# Users may write here. The name cannot be guessed, and set -C refuses what is there already, so that root never
	# writes through somebody's link, and nobody can stop a node by taking the name first.
	token=$(od -An -N8 -tx1 /dev/urandom | tr -d ' \n')
	probe="$1/.hyperpod-probe-$HP_NODE.$token"
	# In a process that can be given up: a dead file server blocks for ever.
	# shellcheck disable=SC2016
	timeout --kill-after=1 5 bash -c 'set -C; echo "$2" >"$1" && [[ $(<"$1") == "$2" ]] && rm -f "$1"' _ \
		"$probe" "$text" 2>/dev/null
}

for mount in $HP_SHARED_MOUNTS; do
	deadline=$((SECONDS + HP_MOUNT_WAIT_S))
	until try_mount "$mount"; do
		if ((SECONDS >= deadline)); then hp_die "$mount could not be written and read within $HP_MOUNT_WAIT_S s"; fi
		hp_log "$mount cannot be written yet"
		sleep 1
	done
	# The default place of checkpoints belongs to nobody: were it made by the first user's job, it would be that user's,
	# who could then plant what others resume from.
	if [[ $HP_ROLE == head && $mount == /fsx && ! -e /fsx/checkpoints ]]; then mkdir -m 1777 /fsx/checkpoints; fi
done
