# shellcheck shell=bash disable=SC2034
# What the scripts of a machine in a cloud share. Sourced, never run.

ROOT=${HP_ROOT:-}
set -a
# shellcheck source=/dev/null
. "$ROOT/etc/hyperpod/cloud.env"
AWS_DEFAULT_REGION=$HP_REGION
AWS_MAX_ATTEMPTS=5
set +a
FOLDER="s3://$HP_BUCKET/$HP_PREFIX"
METADATA=${AWS_EC2_METADATA_SERVICE_ENDPOINT:-http://169.254.169.254}

# metadata PATH: one value of the metadata service (version 2: a session token first).
metadata() {
	local token
	token=$(curl -sSf --retry 5 --max-time 5 -X PUT "${METADATA%/}/latest/api/token" \
		-H 'X-aws-ec2-metadata-token-ttl-seconds: 300')
	curl -sSf --retry 5 --max-time 5 -H "X-aws-ec2-metadata-token: $token" "${METADATA%/}/latest/meta-data/$1"
}

say() { printf '%(%Y-%m-%dT%H:%M:%S%z)T %s: %s\n' -1 "${0##*/}" "$*" >>"$ROOT/var/log/provision/provisioning.log"; }
