"""The user data of a group's machines: a few lines that fetch the real scripts from S3. Pure.

Owns the size limit and the rule that nothing secret is in it: everybody who may describe an instance, and every process
on it, can read its user data. What differs between the nodes of a group is fetched by instance id later.
"""

from __future__ import annotations

import base64
import gzip
import shlex
from dataclasses import dataclass
from typing import Final

from hyperpod.errors import ConfigError

MAX_BYTES: Final = 16 * 1024
"""EC2's limit, before base64."""
METADATA_ADDRESS: Final = "169.254.169.254"

_SCRIPT: Final = """\
#!/bin/bash
# hyperpod: first boot of a machine. What it does is in the scripts that it fetches.
set -euo pipefail
umask 022
mkdir -p /var/log/provision
exec >>/var/log/provision/user-data.log 2>&1
{settings}
export HP_CLUSTER HP_GROUP HP_REGION HP_BUCKET HP_PREFIX HP_SOFTWARE AWS_DEFAULT_REGION="$HP_REGION"

# Only root may ask the metadata service: it hands out the rights of this machine's role.
iptables -C OUTPUT -d {metadata} -m owner ! --uid-owner 0 -j REJECT 2>/dev/null ||
	iptables -I OUTPUT -d {metadata} -m owner ! --uid-owner 0 -j REJECT ||
	echo "warning: the metadata service is open to every user of this machine"

if ! command -v aws >/dev/null; then
	export DEBIAN_FRONTEND=noninteractive
	{{ apt-get -o DPkg::Lock::Timeout=300 update && apt-get -o DPkg::Lock::Timeout=300 -y install awscli; }} ||
		snap install aws-cli --classic
fi
mkdir -p /opt/hyperpod
for ((try = 1; ; try++)); do
	if aws s3 cp --only-show-errors "s3://$HP_BUCKET/$HP_PREFIX/software/$HP_SOFTWARE.tar.gz" - |
		tar -xz --no-same-owner -C /opt/hyperpod; then break; fi
	if ((try >= 30)); then echo "error: the scripts could not be fetched"; exit 1; fi
	sleep 10
done
exec bash /opt/hyperpod/lifecycle_scripts/cloud/first_boot.sh
"""


@dataclass(frozen=True)
class BootSettings:
    """What a machine of a group must know to fetch the rest.

    Attributes:
        cluster, group: Names.
        region: Of the bucket and of all calls.
        bucket, prefix: Where the cluster's folder is in S3; the prefix has no slash at its ends.
        software: Name of the archive with our programs and scripts; another one for every change of them.
    """

    cluster: str
    group: str
    region: str
    bucket: str
    prefix: str
    software: str


def render_user_data(settings: BootSettings) -> str:
    """Return the script that a machine runs at its first boot."""
    variables = {
        "HP_CLUSTER": settings.cluster,
        "HP_GROUP": settings.group,
        "HP_REGION": settings.region,
        "HP_BUCKET": settings.bucket,
        "HP_PREFIX": settings.prefix,
        "HP_SOFTWARE": settings.software,
    }
    lines = "\n".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())
    return _SCRIPT.format(settings=lines, metadata=METADATA_ADDRESS)


def encode_user_data(script: str) -> str:
    """Return user data as EC2's calls take it: compressed when that is needed, in base64.

    cloud-init unpacks compressed user data by itself. Equal scripts give equal texts.

    Raises:
        ConfigError: if it is over EC2's limit even compressed.
    """
    data = script.encode()
    if len(data) > MAX_BYTES:
        data = gzip.compress(data, mtime=0)
    if len(data) > MAX_BYTES:
        raise ConfigError(
            f"user data has {len(data)} bytes compressed; EC2 takes {MAX_BYTES}",
            hint="put scripts into the lifecycle folder in S3 instead",
        )
    return base64.b64encode(data).decode()
