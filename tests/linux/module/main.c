// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * The module: `echo WORD [ARGUMENT] > /sys/module/probes/parameters/do` runs one of the words below;
 * the write's error is its answer.
 */
#include <linux/delay.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/string.h>
#include "host.h"

/* Ours is MIT OR Apache-2.0; Linux knows the first of them by this name. */
MODULE_LICENSE("Dual MIT/GPL");
MODULE_DESCRIPTION("probe-core in Linux: a test of the library");

static int self_test(char *argument)
{
	char why[200] = "";
	int error = our_probe_self_test(why, sizeof(why));

	if (error)
		say("self test: %d %s", error, why);
	return error;
}

static int counts(char *argument)
{
	say("faults %ld, mended %ld, executable pieces %ld, staged writes %ld", atomic_long_read(&host_counts.faults),
	    atomic_long_read(&host_counts.fixed), atomic_long_read(&host_counts.pieces), atomic_long_read(&host_counts.staged));
	return 0;
}

static int jump(char *argument)
{
	long places = our_probe_optimise();

	say("%ld places have a jump", places);
	return places < 0 ? places : 0;
}

static int no_jump(char *argument) { return our_probe_unoptimise(); }

/* For removal: answers -EBUSY as long as something remains. */
static bool is_stopped;

static int stop(char *argument)
{
	int error = is_stopped ? 0 : host_stop();

	is_stopped = !error;
	return error;
}

static const struct {
	const char *word;
	int (*run)(char *argument);
} words[] = {
#define WORD(name) { #name, name }
	WORD(self_test), WORD(counts), WORD(jump), WORD(no_jump), WORD(stop),
	WORD(pairs_on), WORD(pairs_count), WORD(pairs_report), WORD(pairs_off), WORD(churn),
	WORD(walk), WORD(walk_posts), WORD(walk_off), WORD(copies), WORD(faulted),
	WORD(examples_on), WORD(example_forked), WORD(examples_report), WORD(examples_off), WORD(follow), WORD(follow_off), WORD(explain), WORD(cost),
};

static int run_word(const char *line, const struct kernel_param *parameter)
{
	static DEFINE_MUTEX(one);
	char buffer[128], *rest = buffer, *word;
	int i, error = -ENOENT;

	if (THIS_MODULE->state != MODULE_STATE_LIVE || is_stopped)
		return -ESHUTDOWN;
	strscpy(buffer, line, sizeof(buffer));
	rest = strim(buffer);
	word = strsep(&rest, " ");
	mutex_lock(&one);
	for (i = 0; i < ARRAY_SIZE(words); i++)
		if (!strcmp(words[i].word, word))
			error = words[i].run(rest ?: "");
	mutex_unlock(&one);
	return error;
}

static const struct kernel_param_ops word_ops = { .set = run_word };
module_param_cb(do, &word_ops, NULL, 0200);

static int __init start(void) { return host_start(); }

static void __exit end(void)
{
	while (stop(NULL) == -EBUSY)
		msleep(10);
	walk_free();
}

module_init(start);
module_exit(end);
