#!/bin/bash
# First boot of a machine in a cloud, called by its user data: programs, units, this node's files; then the birth.
#
# Safe to run again: what is there already is left alone.
set -euo pipefail

HERE=$(dirname "$(readlink -f "$0")")
ROOT=${HP_ROOT:-}
: "${HP_CLUSTER:?}" "${HP_GROUP:?}" "${HP_REGION:?}" "${HP_BUCKET:?}" "${HP_PREFIX:?}" "${HP_SOFTWARE:?}"

install -d -m 0755 "$ROOT/etc/hyperpod" "$ROOT/var/log/provision" "$ROOT/etc/systemd/system"
{
	printf 'HP_CLUSTER=%q\nHP_GROUP=%q\nHP_REGION=%q\n' "$HP_CLUSTER" "$HP_GROUP" "$HP_REGION"
	printf 'HP_BUCKET=%q\nHP_PREFIX=%q\nHP_SOFTWARE=%q\n' "$HP_BUCKET" "$HP_PREFIX" "$HP_SOFTWARE"
	if [[ -n ${AWS_EC2_METADATA_SERVICE_ENDPOINT:-} ]]; then
		printf 'AWS_EC2_METADATA_SERVICE_ENDPOINT=%q\n' "$AWS_EC2_METADATA_SERVICE_ENDPOINT"
	fi
	if [[ -n ${AWS_ENDPOINT_URL:-} ]]; then printf 'AWS_ENDPOINT_URL=%q\n' "$AWS_ENDPOINT_URL"; fi
} >"$ROOT/etc/hyperpod/cloud.env"
chmod 0644 "$ROOT/etc/hyperpod/cloud.env"

# A machine that fails before its birth has begun must say so too, or everybody waits for it in vain.
told() { if [[ $1 != 0 ]]; then "$HERE/failed.sh" "$1"; fi; }
trap 'told $?' EXIT
find /opt/hyperpod/lifecycle_scripts -name '*.sh' -exec chmod 0755 {} +
"$HERE/install.sh"
cp -r /opt/hyperpod/lifecycle_scripts/units/. "$ROOT/etc/systemd/system/"
install -d "$ROOT/etc/systemd/system/hyperpod-bootstrap.service.d"
install -m 0644 "$HERE/hyperpod-cloud.service" "$ROOT/etc/systemd/system/"
install -m 0644 "$HERE/record.conf" "$ROOT/etc/systemd/system/hyperpod-bootstrap.service.d/record.conf"

"$HERE/fetch.sh" --wait
systemctl daemon-reload
systemctl enable hyperpod-cloud.service hyperpod-bootstrap.service
systemctl start --no-block hyperpod-bootstrap.service
