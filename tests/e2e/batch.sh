#!/bin/bash
#SBATCH --open-mode=append
echo "log of attempt ${HYPERPOD_ATTEMPT:-0}"
exec srun --kill-on-bad-exit=0 /home/ubuntu/rank.sh
