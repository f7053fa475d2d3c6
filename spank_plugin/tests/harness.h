/* A test is a function; CHECK counts it as failed and goes on. */
#ifndef HP_HARNESS_H
#define HP_HARNESS_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int harness_passed, harness_failed;
static bool harness_ok;

#define CHECK(condition)                                                                         \
	do {                                                                                     \
		if (!(condition)) {                                                              \
			harness_ok = false;                                                      \
			printf("%s:%d: %s: not so: %s\n", __FILE__, __LINE__, __func__,          \
			       #condition);                                                      \
		}                                                                                \
	} while (0)

#define CHECK_STR(got, want) harness_check_str(__FILE__, __LINE__, __func__, (got), (want))

static inline void harness_check_str(const char *file, int line, const char *test,
				     const char *got, const char *want)
{
	if ((got == NULL) != (want == NULL) ||
	    (got != NULL && want != NULL && strcmp(got, want) != 0)) {
		harness_ok = false;
		printf("%s:%d: %s: got %s, want %s\n", file, line, test,
		       got != NULL ? got : "(unset)", want != NULL ? want : "(unset)");
	}
}

#define RUN(test)                                                                                \
	do {                                                                                     \
		harness_ok = true;                                                               \
		test();                                                                          \
		if (harness_ok)                                                                  \
			harness_passed++;                                                        \
		else                                                                             \
			harness_failed++;                                                        \
	} while (0)

static inline int harness_end(const char *name)
{
	printf("%s: %d passed, %d failed\n", name, harness_passed, harness_failed);
	return (harness_failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE);
}

#endif
