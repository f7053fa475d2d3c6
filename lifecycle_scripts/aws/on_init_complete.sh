#!/bin/bash
# Makes a HyperPod node ours, after the service has set it up (OnInitComplete), or at the end of an own OnCreate script.
#
# Installs the agent, the SPANK plugin and, on the head node, the controller, beside AWS's own agent. Finds Slurm in
# /opt/slurm, adds one line to plugstack.conf, and changes nothing else of Slurm's configuration. Safe to run again.
#
# Beside this script, as "hyperpod scripts sync --with-hyperpod" lays them: hyperpod-node/{lib,spank_plugin,units}.
set -euo pipefail

HERE=$(dirname "$(readlink -f "$0")")
ROOT=${HP_ROOT:-}                    # another root tree, for tests
SOURCE=${HP_SOURCE:-$HERE/hyperpod-node}
SLURM=${HP_SLURM:-/opt/slurm}        # below ROOT
PREFIX=/opt/hyperpod                 # below ROOT
LOG=$ROOT/var/log/provision/provisioning.log
RESOURCE_CONFIG=${SAGEMAKER_RESOURCE_CONFIG_PATH:-/opt/ml/config/resource_config.json}

log() {
	printf '%(%Y-%m-%dT%H:%M:%S%z)T hyperpod: %s\n' -1 "$*" | tee -a "$LOG" >&2
}

die() {
	log "error: $*"
	exit 1
}

# install_packages NAME...: Debian's; another apt may hold the lock for a while at a first boot.
install_packages() {
	log "installing $*"
	DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 update -qq &&
		DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends "$@" \
			>/dev/null
}

# find_python: the newest interpreter that our programs run with.
find_python() {
	local name
	for name in python3.13 python3.12 python3.11 python3; do
		if command -v "$name" >/dev/null && "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
			command -v "$name"
			return 0
		fi
	done
	return 1
}

# put SOURCE TARGET MODE: copy a file unless it is there already, equal; status 10 = nothing changed.
put() {
	if [[ -f $2 ]] && cmp -s "$1" "$2"; then return 10; fi
	install -D -m "$3" "$1" "$2.new"
	mv -f "$2.new" "$2"
}

# put_text TEXT TARGET MODE: the same for a text.
put_text() {
	local file code=0
	file=$(mktemp)
	printf '%s' "$1" >"$file"
	put "$file" "$2" "$3" || code=$?
	rm -f "$file"
	return "$code"
}

# quiet COMMAND...: "already so" is as good as done.
quiet() {
	local code=0
	"$@" || code=$?
	[[ $code == 0 || $code == 10 ]]
}

install_programs() {
	local name module python=$1
	if [[ ! -d $ROOT$PREFIX/lib/hyperpod ]] || ! diff -rq -x __pycache__ "$SOURCE/lib" "$ROOT$PREFIX/lib" >/dev/null; then
		rm -rf "$ROOT$PREFIX/lib.new" "$ROOT$PREFIX/lib.old"
		mkdir -p "$ROOT$PREFIX"
		cp -r "$SOURCE/lib" "$ROOT$PREFIX/lib.new"
		if [[ -d $ROOT$PREFIX/lib ]]; then mv "$ROOT$PREFIX/lib" "$ROOT$PREFIX/lib.old"; fi
		mv "$ROOT$PREFIX/lib.new" "$ROOT$PREFIX/lib"
		rm -rf "$ROOT$PREFIX/lib.old"
		PROGRAMS_CHANGED=yes
		log "programs installed in $PREFIX"
	fi
	for name in hyperpod:hyperpod.__main__ hyperpod-agent:hyperpod.agent.__main__ \
		hyperpod-controller:hyperpod.controller.__main__; do
		module=${name#*:} name=${name%%:*}
		quiet put_text "#!$python"$'\n'"import sys"$'\n'"sys.path.insert(0, \"$PREFIX/lib\")"$'\n'"from $module import main"$'\n'"sys.exit(main())"$'\n' \
			"$ROOT$PREFIX/bin/$name" 0755
		mkdir -p "$ROOT/usr/local/bin"
		ln -sfn "$PREFIX/bin/$name" "$ROOT/usr/local/bin/$name"
	done
}

# build_plugin: for the Slurm that is here; a plugin of another release is refused by it.
build_plugin() {
	local plugin=$ROOT$SLURM/lib/slurm/hyperpod.so stamp=$ROOT$PREFIX/plugin.stamp wanted
	wanted=$("$ROOT$SLURM/bin/sinfo" --version)" "$(cat "$SOURCE"/spank_plugin/*.[ch] | sha256sum | cut -d' ' -f1)
	if [[ -f $plugin && -f $stamp && $(<"$stamp") == "$wanted" ]]; then return 0; fi
	if ! command -v make >/dev/null || ! command -v gcc >/dev/null; then install_packages gcc make libc6-dev; fi
	local build
	build=$(mktemp -d)
	if ! make -s -C "$SOURCE/spank_plugin" BUILD="$build" PLUGIN_DIR="$ROOT$SLURM/lib/slurm" \
		SLURM_CPPFLAGS="-I$ROOT$SLURM/include" install >>"$LOG" 2>&1; then
		rm -rf "$build"
		# Jobs run without it as on a stock Slurm; the agent reports that it is missing.
		log "error: the plugin does not build for $wanted; --auto-resume is not there (see above)"
		return 1
	fi
	rm -rf "$build"
	printf '%s\n' "$wanted" >"$stamp"
	log "plugin built for ${wanted% *}"
}

# add_plugin: one line at the end of plugstack.conf; all others stay as they are.
add_plugin() {
	local conf=$ROOT$SLURM/etc/plugstack.conf line
	line="optional $SLURM/lib/slurm/hyperpod.so socket=/run/hyperpod/agent.sock"
	# Where slurmd fetches its configuration from the head node, a file here would hide that one.
	if [[ $HP_ROLE != head && ! -f $conf ]]; then return 0; fi
	if [[ -f $conf ]] && grep -qE '^[[:space:]]*(optional|required)[[:space:]]+[^[:space:]]*/hyperpod\.so([[:space:]]|$)' "$conf"; then
		return 0
	fi
	# HyperPod's own plugin may offer --auto-resume already: Slurm would tell everybody who submits that there are two.
	if "$ROOT$SLURM/bin/srun" --help 2>/dev/null | grep -q -- '--auto-resume'; then line+=" option=theirs"; fi
	if [[ -f $conf ]]; then cp -p "$conf" "$conf.new"; else install -m 0644 /dev/null "$conf.new"; fi
	if [[ -s $conf.new && -n $(tail -c 1 "$conf.new") ]]; then printf '\n' >>"$conf.new"; fi
	printf '%s\n' "$line" >>"$conf.new"
	mv -f "$conf.new" "$conf"
	PLUGSTACK_CHANGED=yes
	log "plugin added to plugstack.conf"
}

install_units() {
	local unit units=(hyperpod-agent hyperpod-goodbye) code
	if [[ $HP_ROLE == head ]]; then units=(hyperpod-agent hyperpod-controller); fi
	if [[ $HP_ROLE == login ]]; then units=(hyperpod-agent); fi
	# Our units wait for this file, which a boot takes away.
	quiet put_text $'d /run/hyperpod 0755 root root\nf /run/hyperpod/born 0644 root root\n' "$ROOT/etc/tmpfiles.d/hyperpod.conf" 0644
	install -d -m 0755 "$ROOT/run/hyperpod"
	touch "$ROOT/run/hyperpod/born"
	mkdir -p "$ROOT/etc/systemd/system/multi-user.target.wants"
	for unit in "${units[@]}"; do
		code=0
		put "$SOURCE/units/$unit.service" "$ROOT/etc/systemd/system/$unit.service" 0644 || code=$?
		if [[ $code == 0 ]]; then UNITS_CHANGED=yes; elif [[ $code != 10 ]]; then return "$code"; fi
		ln -sfn "../$unit.service" "$ROOT/etc/systemd/system/multi-user.target.wants/$unit.service"
	done
	UNITS=("${units[@]}")
}

start() {
	if [[ -n ${UNITS_CHANGED:-} ]]; then systemctl daemon-reload; fi
	local unit name
	for unit in "${UNITS[@]}"; do
		name=${unit#hyperpod-}
		if [[ -n ${UNITS_CHANGED:-}${PROGRAMS_CHANGED:-} || " $HP_CHANGED " == *" $name "* ]]; then
			if [[ $unit != hyperpod-goodbye ]]; then systemctl try-restart --no-block "$unit.service"; fi
		fi
		systemctl start --no-block "$unit.service"
	done
	if [[ -n ${PLUGSTACK_CHANGED:-} && $HP_ROLE == head ]]; then
		# slurmds fetch plugstack.conf anew; running jobs are not touched.
		"$ROOT$SLURM/bin/scontrol" reconfigure || log "scontrol reconfigure failed: new nodes get the plugin, old ones later"
	fi
}

mkdir -p "${LOG%/*}"
[[ -d $SOURCE/lib/hyperpod ]] || die "$SOURCE is not here: send it with hyperpod scripts sync DIR S3_URI --with-hyperpod"
[[ -f $ROOT$RESOURCE_CONFIG ]] || die "$RESOURCE_CONFIG is not here: this is no HyperPod node"
[[ -x $ROOT$SLURM/bin/sinfo ]] || die "Slurm is not in $SLURM: this script runs after the service's own set-up"

if ! PYTHON=$(find_python); then
	install_packages python3.11 || true
	PYTHON=$(find_python) || die "no Python 3.11 or newer, and no package python3.11 for this system"
fi
PROGRAMS_CHANGED='' UNITS_CHANGED='' PLUGSTACK_CHANGED='' UNITS=()
install_programs "$PYTHON"

ADDRESSES=()
for address in ${HP_ADDRESSES:-$(hostname -I)}; do ADDRESSES+=(--address "$address"); done
MOUNTS=()
for folder in /fsx /home; do
	if awk -v folder="$folder" '$2 == folder && $3 ~ /^(lustre|nfs|nfs4)$/ { found = 1 } END { exit !found }' \
		"$ROOT/proc/mounts" 2>/dev/null; then MOUNTS+=(--mount "$folder"); fi
done
NODE=$(PYTHONPATH=$ROOT$PREFIX/lib "$PYTHON" -m hyperpod.adapters.aws.node_setup --resource-config "$ROOT$RESOURCE_CONFIG" \
	--parameters "$HERE/provisioning_parameters.json" --policies "$SOURCE/policies.json" --slurm "$SLURM" --root "$ROOT" \
	--out "$ROOT/etc/hyperpod" "${ADDRESSES[@]}" ${MOUNTS[@]+"${MOUNTS[@]}"}) || die "this node cannot be configured (see above)"
eval "$NODE"
: "${HP_ROLE:?}" "${HP_NODE:?}" "${HP_CHANGED?}"

PLUGIN=yes
if [[ $HP_ROLE != login || -d $ROOT$SLURM/include ]]; then build_plugin || PLUGIN=no; fi
if [[ $PLUGIN == yes ]]; then add_plugin; fi
install_units
if [[ -z ${HP_NO_START:-} ]]; then start; fi
log "$HP_NODE ($HP_ROLE) is set up"
