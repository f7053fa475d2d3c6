#!/bin/bash
# Brings a machine into the cluster; runs at every boot, before any Slurm daemon.
#
# At the first boot of an instance it runs the group's own script (OnCreate), then ours (on_create.sh), then the
# group's OnInitComplete. At later boots only ours. Only when all ended well do /run/hyperpod/born and the daemons
# come: every daemon's unit has that file as a condition, so a half-made node can never take a job, and a user's
# script which calls "systemctl start slurmd" itself is not blocked by it either.
set -euo pipefail

HERE=$(dirname "$(readlink -f "$0")")
# shellcheck source-path=SCRIPTDIR source=lib/common.sh
. "$HERE/lib/common.sh"

RECORD_DIR=/var/log/provision
LOG=$RECORD_DIR/provisioning.log
MARKER=/var/lib/hyperpod-node/born-$HP_INSTANCE_ID
CURRENT_SCRIPT=
ATTEMPT=0
TIMINGS={}

now_ms() { local t=${EPOCHREALTIME/[.,]/}; echo "${t%???}"; }
BEGAN_MS=$(now_ms)

# write_result STATUS EXIT_CODE MESSAGE: leaves the record where the provider reads it.
write_result() {
	local tail_text=
	if [[ $1 != running ]]; then tail_text=$(tail -n 20 "$LOG" 2>/dev/null || true); fi
	jq -n --arg id "$HP_INSTANCE_ID" --arg node "$HP_NODE" --arg status "$1" --argjson code "$2" --arg message "$3" \
		--arg script "$CURRENT_SCRIPT" --argjson attempt "$ATTEMPT" --arg tail "$tail_text" \
		--argjson timings "$TIMINGS" --argjson began "$BEGAN_MS" --arg boot "$(cat "$HP_RUN_DIR/boot_id")" \
		'{instance_id: $id, node: $node, status: $status, script: $script, exit_code: $code, attempt: $attempt,
		  message: $message, tail: ($tail | split("\n")), timings_ms: $timings, began_ms: $began, boot_id: $boot}' \
		>"$RECORD_DIR/.result.json"
	mv -f "$RECORD_DIR/.result.json" "$RECORD_DIR/result.json"
}

# timed NAME COMMAND...: runs a command and adds its duration to the record.
timed() {
	local name=$1 began code=0
	shift
	began=$(now_ms)
	"$@" || code=$?
	TIMINGS=$(jq -c --arg name "$name" --argjson ms "$(($(now_ms) - began))" '. + {($name): $ms}' <<<"$TIMINGS")
	return "$code"
}

# run_script NAME: one of the group's own scripts, from a writable copy as HyperPod stages it, with bounded tries.
run_script() {
	local script=$1 stage="/tmp/hyperpod-lifecycle/$HP_CLUSTER/$HP_GROUP" code
	# /tmp is everybody's: the first part of the path must be ours and new, or somebody's link decides what root runs.
	rm -rf /tmp/hyperpod-lifecycle
	mkdir -m 0755 /tmp/hyperpod-lifecycle
	mkdir -p "$stage"
	cp -a "$HP_NODE_DIR/lifecycle/." "$stage/"
	if [[ ! -f $stage/$script ]]; then
		hp_log "the lifecycle folder has no file $script"
		return 127
	fi
	chmod +x "$stage/$script"
	for ((ATTEMPT = 1; ; ATTEMPT++)); do
		hp_log "running $script (try $ATTEMPT of $HP_SCRIPT_ATTEMPTS)"
		write_result running null "running $script"
		code=0
		(
			cd "$stage"
			SAGEMAKER_RESOURCE_CONFIG_PATH=/opt/ml/config/resource_config.json HOME=/root \
				timeout --kill-after=10 "$HP_SCRIPT_TIMEOUT_S" "./$script"
		) >>"$LOG" 2>&1 </dev/null || code=$?
		if [[ $code == 0 ]]; then return 0; fi
		hp_log "$script ended with status $code"
		if ((ATTEMPT >= HP_SCRIPT_ATTEMPTS)); then return "$code"; fi
		sleep "$HP_SCRIPT_RETRY_S"
	done
}

# must NAME SCRIPT COMMAND...: runs a part of the birth; if it fails the birth has failed, for good.
must() {
	local name=$1 code=0
	CURRENT_SCRIPT=$2
	shift 2
	timed "$name" "$@" || code=$?
	if [[ $code != 0 ]]; then
		write_result failed "$code" "$CURRENT_SCRIPT ended with status $code"
		exit 1
	fi
}

mkdir -p "$RECORD_DIR" /var/lib/hyperpod-node "$HP_RUN_DIR"
# What a group's script prints may be secret.
chmod 0750 "$RECORD_DIR"
# All nodes of one host share the kernel's boot id, so a node counts its boots by one of its own.
cat /proc/sys/kernel/random/uuid >"$HP_RUN_DIR/boot_id"
hp_log "boot of instance $HP_INSTANCE_ID as $HP_NODE ($HP_ROLE)"
write_result running null "booting"

must early on_create.sh "$HERE/on_create.sh" early
if [[ ! -e $MARKER && -n $HP_ON_CREATE ]]; then must on_create "$HP_ON_CREATE" run_script "$HP_ON_CREATE"; fi
must steps on_create.sh "$HERE/on_create.sh" all
if [[ ! -e $MARKER && -n $HP_ON_INIT_COMPLETE ]]; then
	must on_init_complete "$HP_ON_INIT_COMPLETE" run_script "$HP_ON_INIT_COMPLETE"
fi
touch "$MARKER" "$HP_RUN_DIR/born"
must services systemctl "$HERE/on_create.sh" services
CURRENT_SCRIPT=
TIMINGS=$(jq -c --argjson ms "$(($(now_ms) - BEGAN_MS))" '. + {total: $ms}' <<<"$TIMINGS")
hp_log "the node is born"
write_result ok 0 "the node is born"
