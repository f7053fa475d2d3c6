#!/bin/bash
#SBATCH --open-mode=append
# As users of SageMaker HyperPod write it: nothing on the submit line, the option on srun.
srun --auto-resume=5 /home/ubuntu/rank.sh
echo "the script went on with $?"
