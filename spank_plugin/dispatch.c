/*
 * The only file Slurm calls into: sends each hook to the code for its context.
 *
 * Every hook returns success whatever happened: a job must run as if we weren't there.
 */
#include <stddef.h>

#include <slurm/slurm_errno.h>
#include <slurm/spank.h>

#include "config.h"
#include "local.h"
#include "options.h"
#include "remote.h"

SPANK_PLUGIN(hyperpod, 1)

static struct hp_config config;

int slurm_spank_init(spank_t spank, int ac, char *argv[])
{
	enum spank_context context = spank_context();

	switch (context) {
	case S_CTX_ALLOCATOR:
	case S_CTX_LOCAL:
		hp_local_init(context == S_CTX_ALLOCATOR);
		/* fall through */
	case S_CTX_REMOTE:
		config = hp_config_read(ac, argv);
		hp_options_register(spank, config.option_is_theirs);
		break;
	case S_CTX_SLURMD: /* nothing to do but to say what is wrong with the configuration */
		(void)hp_config_read(ac, argv);
		break;
	case S_CTX_JOB_SCRIPT:
	case S_CTX_ERROR:
	default:
		break;
	}
	return (ESPANK_SUCCESS);
}

int slurm_spank_init_post_opt(spank_t spank, int ac, char *argv[])
{
	(void)ac;
	(void)argv;
	switch (spank_context()) {
	case S_CTX_ALLOCATOR:
		hp_local_init_post_opt(&config, true);
		break;
	case S_CTX_LOCAL:
		hp_local_init_post_opt(&config, false);
		break;
	case S_CTX_REMOTE:
		hp_remote_init_post_opt(spank, &config);
		break;
	case S_CTX_SLURMD:
	case S_CTX_JOB_SCRIPT:
	case S_CTX_ERROR:
	default:
		break;
	}
	return (ESPANK_SUCCESS);
}

int slurm_spank_task_init(spank_t spank, int ac, char *argv[])
{
	(void)ac;
	(void)argv;
	if (spank_context() == S_CTX_REMOTE)
		hp_remote_task_init(spank);
	return (ESPANK_SUCCESS);
}

int slurm_spank_task_post_fork(spank_t spank, int ac, char *argv[])
{
	(void)ac;
	(void)argv;
	if (spank_context() == S_CTX_REMOTE)
		hp_remote_task_start(spank);
	return (ESPANK_SUCCESS);
}

int slurm_spank_task_exit(spank_t spank, int ac, char *argv[])
{
	(void)ac;
	(void)argv;
	if (spank_context() == S_CTX_REMOTE)
		hp_remote_task_exit(spank);
	return (ESPANK_SUCCESS);
}

int slurm_spank_exit(spank_t spank, int ac, char *argv[])
{
	(void)ac;
	(void)argv;
	if (spank_context() == S_CTX_REMOTE)
		hp_remote_exit(spank);
	return (ESPANK_SUCCESS);
}
