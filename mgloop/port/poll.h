/* SPDX-License-Identifier: GPL-2.0-only
 *
 * The Mongoose port: one poll object per event loop, driven by the unmodified mg_mgr_poll().
 *
 * Mongoose reaches the kernel through epoll_wait(). poll.c redirects that one call to a hook, the way
 * Mongoose itself is ported to stacks with other socket calls. Unmodified Mongoose would walk all
 * connections twice per poll, treat EOF as close, lose errno and spin on a paused socket. With the
 * hook it only sees the connections that are ready:
 *
 *   mgl_poll_run(deadline)
 *     mg_mgr_poll()                      code of Mongoose
 *       epoll_wait -> hook               waits, detached from the interpreter, then links one
 *                                        mg_connection from a pool for each ready registration
 *       for each linked connection       code of Mongoose
 *         MG_EV_POLL -> handler          code of mgloop: records (owner, events)
 *     mgr->conns = the wake-up connection    unlinks all others again, O(1)
 *
 * An idle registered descriptor has no mg_connection. The connections come from a pool, which is as
 * large as the largest batch seen (at most MGL_MAX_EVENTS). They are chained permanently, so linking
 * n ready ones takes a single assignment. Compared with one mg_connection per descriptor, this saves
 * 288 bytes and two cold cache lines per idle connection.
 *
 * The key of an epoll registration is the descriptor and a generation, never a pointer. A registration
 * outlives close() if the open file has a duplicate (dup, fork), and then still reports events. The
 * generation distinguishes such a stale event from an event of the descriptor's current owner.
 *
 * Threads: all functions require the loop's thread, attached to the interpreter, except
 * mgl_poll_wakeup(), which any thread may call. Lifetime: a registration holds one reference to its
 * owner.
 * After fork() the child must not modify the parent's epoll set. Every function that would call
 * epoll_ctl() checks mgl_poll_forked() first.
 */
#ifndef MGLOOP_POLL_H
#define MGLOOP_POLL_H

#include <Python.h>
#include <semaphore.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/epoll.h>

#include "counters.h"
#include "threadqueue.h"

typedef struct mgl_poll mgl_poll;

/* Called once per ready registration, inside mg_mgr_poll(). It must only record the event. */
typedef void (*mgl_record_fn)(PyObject *loop, PyObject *owner, uint32_t events);

/* Creates a poll object, or returns NULL with a Python exception set. enable_wakeup: whether to set up
 * mg_wakeup(). `loop`, `thread_queue` and `count` are borrowed. A poll does not wait if the thread
 * queue has handles. */
mgl_poll *mgl_poll_new(PyObject *loop, mgl_record_fn record, mgl_thread_queue *thread_queue, mgl_counters *count,
                       bool enable_wakeup);
void mgl_poll_free(mgl_poll *poll);

#define MGL_NEVER INT64_MAX

/* Runs one iteration of mg_mgr_poll(). It waits until `deadline`, in nanoseconds of mgl_clock_ns(), at
 * most; 0 does not wait, and MGL_NEVER waits until an event occurs. It may return earlier without
 * events. Returns the number of recorded registrations, or -errno if the wait failed (also EINTR). */
int mgl_poll_run(mgl_poll *poll, int64_t deadline);
/* Returns false if `deadline` had not passed at the last iteration, so the clock need not be read. */
bool mgl_poll_may_have_passed(const mgl_poll *poll, int64_t deadline);

/* Returns the maximum number of registrations that one run records. The caller reserves space for it. */
int mgl_poll_batch(const mgl_poll *poll);

/* Returns the epoll descriptor, which is readable while an event is pending. The child of a fork gets
 * another one. */
int mgl_poll_fd(const mgl_poll *poll);

/* Interest in a descriptor. All functions return 0, or -errno without a Python exception.
 * mgl_poll_claim() sets the owner without registering the descriptor with the kernel. */
int mgl_poll_claim(mgl_poll *poll, int fd, PyObject *owner);
int mgl_poll_add(mgl_poll *poll, int fd, uint32_t events, PyObject *owner);
int mgl_poll_modify(mgl_poll *poll, int fd, uint32_t events);
/* Removes fd and drops the reference to its owner. in_kernel: also call epoll_ctl(DEL). */
void mgl_poll_remove(mgl_poll *poll, int fd, bool in_kernel);
/* Returns the owner of fd (borrowed), or NULL. */
PyObject *mgl_poll_owner(const mgl_poll *poll, int fd);
/* Returns one more than the largest descriptor that may be registered. */
int mgl_poll_limit(const mgl_poll *poll);

/* Interrupts the loop's wait with the stock mg_wakeup(). It makes no system call while the loop is not
 * waiting or a wake-up has already been sent. The loop may already be closed. */
void mgl_poll_wakeup(mgl_thread_queue *thread_queue);

/* Makes the next run post the semaphore after it has released the GIL. Otherwise the thread that waits
 * for it would start to run, find that the GIL is taken, and wait again: two context switches more. */
void mgl_poll_post_later(mgl_poll *poll, sem_t *semaphore);
/* Posts that semaphore immediately, for a loop that may not poll again. */
void mgl_poll_post_now(mgl_poll *poll);

bool mgl_poll_forked(const mgl_poll *poll);
/* The same for the cross-thread queue, which any thread may read. */
bool mgl_thread_queue_forked(const mgl_thread_queue *thread_queue);
/* In a child of the process that created the loop, creates a new epoll set with all registrations, a new
 * timer descriptor and a new wake-up pair. Returns 0 or -errno. */
int mgl_poll_adopt(mgl_poll *poll);
const char *mgl_mongoose_version(void);
/* Returns mgloop's version, which the build sets. */
const char *mgl_version(void);

#endif
