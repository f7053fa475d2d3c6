#!/bin/bash
#SBATCH --open-mode=append
exec srun --het-group=0,1 /home/ubuntu/rank.sh
