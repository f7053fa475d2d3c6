#!/bin/bash
# Head node: takes over a changed slurm.conf (also one that was lost or damaged) without risking the running one.
#
# The new files are tried by a slurmctld of their own, on a copy, in an empty network; only then they are installed
# and slurmctld re-reads them. If it does not survive that, the last good ones come back.
set -euo pipefail

HERE=$(dirname "$(readlink -f "$0")")
# shellcheck source-path=SCRIPTDIR source=lib/common.sh
. "$HERE/lib/common.sh"

FILES=(slurm.conf cgroup.conf plugstack.conf)
GOOD=/var/lib/hyperpod-node/slurm-last-good
TRIAL=$(mktemp -d /tmp/slurm-trial.XXXXXX)
trap 'rm -rf "$TRIAL"' EXIT

is_current() {
	local name
	for name in "${FILES[@]}"; do hp_same_slurm_conf "$HP_NODE_DIR/$name" "/etc/slurm/$name" || return 1; done
}

try_out() {
	local name pid i
	mkdir "$TRIAL/state"
	for name in "${FILES[@]}"; do cp "$HP_NODE_DIR/$name" "$TRIAL/$name"; done
	sed -i -e "s|^StateSaveLocation=.*|StateSaveLocation=$TRIAL/state|" \
		-e "s|^SlurmctldPidFile=.*|SlurmctldPidFile=$TRIAL/pid|" \
		-e "s|^SlurmctldLogFile=.*|SlurmctldLogFile=$TRIAL/log|" \
		-e "s|^SlurmctldParameters=enable_configless,\?|SlurmctldParameters=|" "$TRIAL/slurm.conf"
	sed -i -e '/^SlurmctldParameters=$/d' "$TRIAL/slurm.conf"
	chown -R slurm:slurm "$TRIAL"
	# shellcheck disable=SC2016
	unshare --net bash -c 'ip link set lo up; ip addr add "$2/32" dev lo
		exec setpriv --reuid slurm --regid slurm --clear-groups slurmctld -D -f "$1/slurm.conf"' \
		_ "$TRIAL" "$HP_ADDRESS" >"$TRIAL/output" 2>&1 &
	pid=$!
	for ((i = 0; i < 100; i++)); do
		if grep -qs "Running as primary controller" "$TRIAL/log" "$TRIAL/output"; then
			kill -KILL "$pid"
			wait "$pid" 2>/dev/null || true
			return 0
		fi
		kill -0 "$pid" 2>/dev/null || break
		sleep 0.1
	done
	kill -KILL "$pid" 2>/dev/null || true
	wait "$pid" 2>/dev/null || true
	grep -hE "error|fatal" "$TRIAL/output" "$TRIAL/log" 2>/dev/null | tail -n 5 >&2
	return 1
}

install_from() {
	local name
	for name in "${FILES[@]}"; do hp_ensure "$1/$name" "/etc/slurm/$name" 0644 root; done
}

reload() {
	if systemctl is-active --quiet slurmctld.service; then
		timeout 30 scontrol reconfigure && timeout 10 scontrol ping >/dev/null
	else
		systemctl restart slurmctld.service
	fi
}

if is_current; then
	echo unchanged
	exit 0
fi
if ! try_out; then
	echo "the new slurm.conf was refused by a trial start; the running one stays" >&2
	exit 1
fi
if [[ -s /etc/slurm/slurm.conf ]] && systemctl is-active --quiet slurmctld.service; then
	mkdir -p "$GOOD"
	for name in "${FILES[@]}"; do cp -f "/etc/slurm/$name" "$GOOD/$name" 2>/dev/null || true; done
fi
install_from "$HP_NODE_DIR"
if ! reload; then
	if [[ -f $GOOD/slurm.conf ]]; then
		install_from "$GOOD"
		systemctl restart slurmctld.service
		echo "slurmctld did not take the new slurm.conf; the last good one is back" >&2
	fi
	exit 1
fi
mkdir -p "$GOOD"
for name in "${FILES[@]}"; do cp -f "/etc/slurm/$name" "$GOOD/$name"; done
echo changed
