#!/bin/bash
# Fetches this node's files from the cluster's folder: /opt/hyperpod/node (root only), /opt/hyperpod/cluster (for all).
#
# fetch.sh [--wait]   --wait: a new machine is told which node it is when all addresses are known; wait for that.
# Run again on a running node it takes over what has changed, e.g. after the cluster was scaled.
set -euo pipefail

HERE=$(dirname "$(readlink -f "$0")")
# shellcheck source-path=SCRIPTDIR source=lib.sh
. "$HERE/lib.sh"
: "${HP_FETCH_WAIT_S:=3600}" "${HP_FETCH_POLL_S:=3}"

id=$(metadata instance-id)
[[ $id =~ ^i-[0-9a-f]{17}$ ]] || { say "error: the metadata service says instance-id '$id'"; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 0700 "$work"

# get NAME FILE: one object of the folder.
get() { aws s3 cp --only-show-errors "$FOLDER/$1" "$2"; }

deadline=$((SECONDS + HP_FETCH_WAIT_S))
until get "instances/$id.json" "$work/instance.json" 2>"$work/error"; do
	if [[ ${1:-} != --wait ]] || ((SECONDS >= deadline)); then
		say "error: nobody says which node $id is: $(tail -n 1 "$work/error")"
		exit 1
	fi
	sleep "$HP_FETCH_POLL_S"
done
node=$(python3 "$HERE/unpack.py" get "$work/instance.json" node)
get "nodes/$node.json" "$work/node.json"
get public.json "$work/public.json"
source=$(python3 "$HERE/unpack.py" get "$work/node.json" lifecycle_source)
install -d -m 0700 "$ROOT/opt/hyperpod/node"
if [[ $source == s3://* ]]; then
	aws s3 sync --only-show-errors --delete "$source" "$ROOT/opt/hyperpod/node/lifecycle"
	find "$ROOT/opt/hyperpod/node/lifecycle" -name '*.sh' -exec chmod 0755 {} +
fi
address=$(metadata local-ipv4)
python3 "$HERE/unpack.py" files "$work/node.json" "$ROOT/opt/hyperpod/node" 0600
python3 "$HERE/unpack.py" files "$work/public.json" "$ROOT/opt/hyperpod/cluster" 0644
printf 'HP_INSTANCE_ID=%s\nHP_ADDRESS=%s\nHP_METADATA=root\n' "$id" "$address" >"$work/instance.env"
install -m 0600 "$work/instance.env" "$ROOT/opt/hyperpod/node/instance.env"
ln -sfn /opt/hyperpod/cluster/hosts "$ROOT/etc/hosts"
if [[ $(hostname) != "$node" ]]; then
	echo "$node" >"$ROOT/etc/hostname"
	hostname "$node"
fi
say "this is $node, machine $id at $address"
