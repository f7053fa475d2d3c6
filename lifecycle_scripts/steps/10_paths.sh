#!/bin/bash
# Puts things where HyperPod users' scripts look for them.
set -euo pipefail
# shellcheck source-path=SCRIPTDIR source=../lib/common.sh
. "$(dirname "$(readlink -f "$0")")/../lib/common.sh"

mkdir -p /opt/ml/config /opt/sagemaker_cluster /opt/slurm /etc/slurm /var/log/hyperpod /etc/hyperpod
ln -sfn "$HP_CLUSTER_DIR/resource_config.json" /opt/ml/config/resource_config.json
ln -sfn /etc/slurm /opt/slurm/etc
ln -sfn /usr/bin /opt/slurm/bin
ln -sfn /usr/sbin /opt/slurm/sbin
ln -sfn /usr/lib/x86_64-linux-gnu /opt/slurm/lib
# Stands in for /dev/kmsg, which on one host is the same for every node.
touch /var/log/hyperpod/kmsg
chmod 0640 /var/log/hyperpod/kmsg
