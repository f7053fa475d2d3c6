/*
 * The options people type: --auto-resume[=N] and --checkpoint-dir=PATH.
 */
#ifndef HP_OPTIONS_H
#define HP_OPTIONS_H

#include <stddef.h>

#include <slurm/spank.h>

/* Forget what was given, and register the options. Only slurm_spank_init may call this. */
void hp_options_register(spank_t spank);

/*
 * Slurm hands an option on to every command inside the job, by variables of this plugin's name.
 * Without them only what is typed counts. Must run before Slurm reads them: in slurm_spank_init.
 */
void hp_options_forget_inherited(void);

/* The checked value, or NULL when the option was not given. */
const char *hp_options_auto_resume(void);
const char *hp_options_checkpoint_dir(void);

#endif
