/* SPDX-License-Identifier: GPL-2.0-only
 *
 * The Mongoose port: one poll object per event loop, driven by the stock mg_mgr_poll().
 *
 * Mongoose reaches the kernel through epoll_wait(); poll.c maps that one call to a hook of ours,
 * the way Mongoose itself is ported to stacks with other socket calls. Stock Mongoose would walk
 * every connection twice per poll, treat EOF as close, lose errno and spin on a paused socket;
 * with the hook it only ever sees the connections that are ready:
 *
 *   mgl_poll_run(deadline)
 *     mg_mgr_poll()                      stock
 *       epoll_wait -> hook               waits for real, detached, then links one
 *                                        mg_connection from a pool for each ready registration
 *       for each linked connection       stock walk
 *         MG_EV_POLL -> handler          records (owner, events) and nothing else
 *     mgr->conns = the wake-up connection    parks everything again, O(1)
 *
 * A registered descriptor that is idle owns no mg_connection at all: the connections come from a
 * pool as large as the largest batch seen (at most MGL_MAX_EVENTS), chained once and for all, so
 * that linking n ready ones is a single assignment. That saves 288 bytes and two cold cache lines
 * per idle connection against one mg_connection each.
 *
 * Registrations are keyed by descriptor and generation, never by pointer: an epoll registration
 * outlives close() when the open file has a duplicate (dup, fork), and then still reports. The
 * generation tells such a ghost from the descriptor's present owner.
 *
 * Threads: everything here needs the loop's own thread, attached to the interpreter, except
 * mgl_poll_wakeup(), which any thread may call. Lifetime: a registration holds one reference to its
 * owner.
 * After fork() the child must not touch the parent's epoll: mgl_poll_forked() tells, and every
 * function that would issue an epoll_ctl() looks first.
 */
#ifndef MGLOOP_POLL_H
#define MGLOOP_POLL_H

#include <Python.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>

#include "counters.h"
#include "inbox.h"

typedef struct mgl_poll mgl_poll;

/* Called once per ready registration, inside mg_mgr_poll(): must only record. */
typedef void (*mgl_record_fn)(PyObject *loop, PyObject *owner, uint32_t events);

/* enable_wakeup: set up mg_wakeup(). Returns NULL with a Python exception set. `loop`, `inbox` and `count`
 * are borrowed; a wait does not begin while something is in the inbox. */
mgl_poll *mgl_poll_new(PyObject *loop, mgl_record_fn record, mgl_inbox *inbox, mgl_counters *count,
                       bool enable_wakeup);
void mgl_poll_free(mgl_poll *poll);

#define MGL_NEVER INT64_MAX

/* One iteration of mg_mgr_poll(). It may wait until `deadline`, in nanoseconds of mgl_clock_ns();
 * 0 = not at all, MGL_NEVER = until something happens. May return earlier, with nothing. Returns
 * the number of registrations recorded, or -errno if the wait itself failed (EINTR too). */
int mgl_poll_run(mgl_poll *poll, int64_t deadline);
/* False = it has not, as of the last iteration: the clock need not be asked. */
bool mgl_poll_may_have_passed(const mgl_poll *poll, int64_t deadline);

/* The most registrations that one run records: room for as many is to be had beforehand. */
int mgl_poll_batch(const mgl_poll *poll);

/* Interest in a descriptor. All return 0, or -errno and no Python exception. mgl_poll_claim() says
 * whose it is and tells the kernel nothing yet. */
int mgl_poll_claim(mgl_poll *poll, int fd, PyObject *owner);
int mgl_poll_add(mgl_poll *poll, int fd, uint32_t events, PyObject *owner);
int mgl_poll_modify(mgl_poll *poll, int fd, uint32_t events);
/* Forgets fd and drops its reference to the owner. `in_kernel` = also epoll_ctl(DEL). */
void mgl_poll_remove(mgl_poll *poll, int fd, bool in_kernel);
/* The owner registered for fd (borrowed), or NULL. */
PyObject *mgl_poll_owner(const mgl_poll *poll, int fd);
/* One past the largest descriptor that may be registered. */
int mgl_poll_limit(const mgl_poll *poll);

/* Ends the loop's wait through the stock mg_wakeup(); free of system calls while the loop is awake
 * or a wake-up is already on its way. The loop may be closed by now. */
void mgl_poll_wakeup(mgl_inbox *inbox);

bool mgl_poll_forked(const mgl_poll *poll);
/* The same, asked of what every thread may look at. */
bool mgl_inbox_forked(const mgl_inbox *inbox);
/* In a child of the process that made the loop: an epoll set, an alarm and a wake-up of its own, and
 * in it all that is registered. Returns 0 or -errno. */
int mgl_poll_adopt(mgl_poll *poll);
const char *mgl_mongoose_version(void);
/* mgloop's own version, from the build. */
const char *mgl_version(void);

#endif
