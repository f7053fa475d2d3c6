#!/bin/bash
# Sets this machine up as head, login or worker node: runs steps/NN_name.sh in order. Safe to run again.
#
# on_create.sh [all|early|services]   early: what the group's own script may count on (paths, network, ssh);
#                                     services: start the daemons of the role.
set -euo pipefail

HERE=$(dirname "$(readlink -f "$0")")
# shellcheck source-path=SCRIPTDIR source=lib/common.sh
. "$HERE/lib/common.sh"

run_step() {
	local step=$1 code=0
	"$step" >>/var/log/provision/provisioning.log 2>&1 </dev/null || code=$?
	if [[ $code != 0 ]]; then
		hp_log "step ${step##*/} ended with status $code"
		exit "$code"
	fi
}

case ${1:-all} in
early) steps=("$HERE"/steps/[0-2]?_*.sh) ;;
all) steps=("$HERE"/steps/[3-8]?_*.sh) ;;
services) steps=("$HERE"/steps/9?_*.sh) ;;
*) hp_die "unknown part $1" ;;
esac
for step in "${steps[@]}"; do run_step "$step"; done
