# shellcheck shell=bash disable=SC2034
# What every lifecycle script begins with: where things are and what this node is. Sourced, never run.

HP_NODE_DIR=${HP_NODE_DIR:-/opt/hyperpod/node}       # this node's configuration, root only, read-only
HP_CLUSTER_DIR=${HP_CLUSTER_DIR:-/opt/hyperpod/cluster} # the cluster's public files, read-only
HP_RUN_DIR=${HP_RUN_DIR:-/run/hyperpod}              # gone at every boot

# node.env belongs to the slot, instance.env to the machine in it.
set -a
# shellcheck source=/dev/null
. "$HP_NODE_DIR/node.env"
# shellcheck source=/dev/null
. "$HP_NODE_DIR/instance.env"
set +a
: "${HP_CLUSTER:?}" "${HP_NODE:?}" "${HP_GROUP:?}" "${HP_ROLE:?}" "${HP_ADDRESS:?}" "${HP_HEAD_NODE:?}"
: "${HP_HEAD_ADDRESS:?}" "${HP_INSTANCE_ID:?}" "${HP_SHARED_MOUNTS=}" "${HP_ON_CREATE=}" "${HP_ON_INIT_COMPLETE=}"
: "${HP_SCRIPT_ATTEMPTS:=3}" "${HP_SCRIPT_TIMEOUT_S:=3600}" "${HP_SCRIPT_RETRY_S:=2}" "${HP_MOUNT_WAIT_S:=120}"
: "${HP_INSTANCE_TYPE:=local}"

# hp_log TEXT...: one line in the provisioning log.
hp_log() {
	printf '%(%Y-%m-%dT%H:%M:%S%z)T %s: %s\n' -1 "${0##*/}" "$*" >>/var/log/provision/provisioning.log
}

# hp_die TEXT...: say why and end the script.
hp_die() {
	hp_log "error: $*"
	exit 1
}

# hp_install SOURCE TARGET MODE OWNER: copy a file unless it is there already, equal; status 10 = nothing changed.
hp_install() {
	if [[ -f $2 ]] && cmp -s "$1" "$2"; then return 10; fi
	install -D -m "$3" -o "$4" -g "$4" "$1" "$2.new"
	mv -f "$2.new" "$2"
}

# hp_ensure SOURCE TARGET MODE OWNER: hp_install, where "already so" is as good as done.
hp_ensure() {
	local code=0
	hp_install "$@" || code=$?
	[[ $code == 0 || $code == 10 ]]
}

# hp_same_slurm_conf A B: equal but for who is in which partition, which the controller changes as it needs spares.
hp_same_slurm_conf() {
	[[ -f $1 && -f $2 ]] || return 1
	cmp -s <(sed -E '/^PartitionName=/s/ Nodes=[^ ]*//' "$1") <(sed -E '/^PartitionName=/s/ Nodes=[^ ]*//' "$2")
}
