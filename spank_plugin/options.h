/*
 * The options people type: --auto-resume[=N] and --checkpoint-dir=PATH.
 */
#ifndef HP_OPTIONS_H
#define HP_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>

#include <slurm/spank.h>

/*
 * Forget what was given, and register the options. Only slurm_spank_init may call this.
 *
 * Another plugin may offer --auto-resume, too (HyperPod's own does). Slurm gives the option to the
 * first one and tells everybody who submits that there are two, unless ours leaves it alone
 * (is_theirs). Either way theirs counts: see hp_options_take_theirs.
 */
void hp_options_register(spank_t spank, bool is_theirs);

/*
 * Take over what another plugin's --auto-resume was given, when ours was given nothing. Slurm puts
 * every option into the environment of srun, sbatch and salloc before slurm_spank_init_post_opt.
 */
void hp_options_take_theirs(char *const environment[]);

/*
 * Slurm hands an option on to every command inside the job, by variables of this plugin's name.
 * Without them only what is typed counts. Must run before Slurm reads them: in slurm_spank_init.
 */
void hp_options_forget_inherited(void);

/* The checked value, or NULL when the option was not given. */
const char *hp_options_auto_resume(void);
const char *hp_options_checkpoint_dir(void);

#endif
