/* SPDX-License-Identifier: GPL-2.0-only
 * The Mongoose port; poll.h describes it. */
#define _GNU_SOURCE
#include "poll.h"

#include "clock.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

/* Mongoose calls epoll_wait() only in mg_iotest(), where the manager is the variable `mgr`. */
struct mg_mgr;
static int mgl_hook(struct mg_mgr *mgr, struct epoll_event *events, int max);
#define epoll_wait(fd, events, max, ms) ((void) (ms), mgl_hook(mgr, (events), (max)))

#define MG_ENABLE_EPOLL 1
#define MG_ENABLE_IPV6 1
#define MG_ENABLE_LOG 0
#define MG_TLS 0 /* MG_TLS_NONE */
#define MG_ENABLE_CUSTOM_MILLIS 1
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#pragma GCC diagnostic ignored "-Wunused-function"
#pragma GCC diagnostic ignored "-Wunused-variable"
#pragma GCC diagnostic ignored "-Wformat-truncation"
#pragma GCC diagnostic ignored "-Wunused-but-set-variable"
#include "mongoose.c"
#pragma GCC diagnostic pop
#undef epoll_wait

enum {
    MGL_MAX_EVENTS = 1024,   /* maximum of ready registrations per wait */
    MGL_FIRST_POOL = 64,     /* initial connections in the pool, and events per wait */
    MGL_FAIRNESS = 16,       /* polls with zero timeout between two releases of the GIL */
};

/* The low half of an epoll key is the descriptor, and the high half is its generation. Mongoose's own
 * keys are user-space pointers, whose top bit is clear. In the port's keys it is set. */
#define MGL_OURS UINT64_C(0x8000000000000000)
#define MGL_TIMER UINT64_C(1) /* the key of the timer descriptor, which cannot be a pointer */
#define MGL_GENERATION 0x7fffffffu

typedef struct {
    PyObject *owner; /* owned reference; NULL if unused */
    uint32_t generation;
    uint32_t events; /* as registered with the kernel; 0 if only claimed */
} registration;

struct mgl_poll {
    struct mg_mgr mgr; /* must be first, because the hook casts it to mgl_poll */
    struct mg_connection *base; /* the wake-up connection, always linked; NULL without wake-ups */
    struct mg_connection **pool;
    int pool_size;
    int linked;
    bool full; /* the last wait returned the maximum number of events */
    int64_t deadline;
    int timer_fd;
    int64_t timer_expires; /* when the timerfd expires; MGL_NEVER if not set */
    int failed; /* errno of the wait, or 0 */
    bool waited; /* the last poll could block, so it has reported the timer if that had expired */
    bool wakeup; /* wake-ups are enabled */
    int zero_polls;
    mgl_thread_queue *thread_queue; /* borrowed from the loop */
    sem_t *to_post; /* the semaphore that the next poll posts, or NULL */
    mgl_counters *count; /* borrowed from the loop */
    registration *table; /* indexed by descriptor */
    int limit;
    uint32_t generation;
    unsigned fork_count;
    PyObject *loop; /* borrowed, because the loop owns the poll object */
    mgl_record_fn record;
    struct epoll_event events[MGL_MAX_EVENTS];
};

static unsigned fork_count; /* forks since the first process; set in the child's only thread */

/* Held while Mongoose creates a manager, which changes the disposition of SIGPIPE. */
static pthread_mutex_t sigpipe_lock = PTHREAD_MUTEX_INITIALIZER;

static void count_fork(void) {
    fork_count++;
    pthread_mutex_init(&sigpipe_lock, NULL); /* a thread that held it does not exist in the child */
}

static void watch_forks(void) { pthread_atfork(NULL, NULL, count_fork); }

bool mgl_poll_forked(const mgl_poll *poll) { return poll->fork_count != fork_count; }

bool mgl_thread_queue_forked(const mgl_thread_queue *thread_queue) { return thread_queue->fork_count != fork_count; }

const char *mgl_mongoose_version(void) { return MG_VERSION; }

const char *mgl_version(void) { return MGLOOP_VERSION; }

/* Mongoose reads its clock in each poll, for timers that the port does not use. */
uint64_t mg_millis(void) { return 0; }

/* ---------------------------------------------------------------- the wait ---- */

/* A wait has no timeout. A timerfd, which is in the epoll set, ends it. The timerfd is not changed if
 * it expires at the deadline or earlier. An early expiry, because the timer that it
 * was set for has been cancelled, costs one iteration of the loop. A server that arms and cancels a
 * timeout per request therefore sets the timerfd once per length of the timeout. A timeout of
 * epoll_wait() would start and stop a kernel timer, and require the current time, at every wait. In
 * addition, the kernel rounds timeouts up, but not timer descriptors. */
static bool set_timer(mgl_poll *poll, int64_t deadline) {
    struct itimerspec at = {.it_value = {deadline / 1000000000, deadline % 1000000000}};
    if (timerfd_settime(poll->timer_fd, TFD_TIMER_ABSTIME, &at, NULL) != 0) return false;
    poll->timer_expires = deadline;
    return true;
}

enum { MGL_NO_SLEEP_NS = 5 * 1000 }; /* blocking and being woken by the timerfd takes longer than this */

/* Returns the timeout for epoll_wait() in milliseconds: -1 if the timerfd expires in time, and 0 if the
 * deadline has passed. If the timerfd cannot be set, for example in a sandbox, the wait has a timeout. */
static int timeout_ms(mgl_poll *poll) {
    if (poll->deadline <= 0) return 0;
    if (poll->timer_expires <= poll->deadline) return -1;
    int64_t left = poll->deadline - mgl_clock_ns();
    if (left <= MGL_NO_SLEEP_NS) {
        while (left > 0) left = poll->deadline - mgl_clock_ns();
        return 0;
    }
    if (set_timer(poll, poll->deadline)) return -1;
    left = left / 1000000 + 1; /* round up, because the loop would spin after an early return */
    return left < INT_MAX ? (int) left : INT_MAX;
}

bool mgl_poll_may_have_passed(const mgl_poll *poll, int64_t deadline) {
    return !poll->waited || poll->timer_expires > deadline;
}

static bool make_timer(mgl_poll *poll) {
    struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.u64 = MGL_TIMER};
    poll->timer_expires = MGL_NEVER;
    poll->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    return poll->timer_fd >= 0 &&
           epoll_ctl(poll->mgr.epoll_fd, EPOLL_CTL_ADD, poll->timer_fd, &event) == 0;
}

static int wait_in_kernel(mgl_poll *poll, int ms) {
    mgl_count(&poll->count->polls, 1);
    return epoll_wait(poll->mgr.epoll_fd, poll->events, poll->pool_size, ms);
}

void mgl_poll_post_now(mgl_poll *poll) {
    sem_t *semaphore = poll->to_post;
    if (semaphore == NULL) return;
    poll->to_post = NULL;
    /* The thread that waits for it does not exist in the child of a fork. */
    if (!mgl_poll_forked(poll)) sem_post(semaphore);
}

void mgl_poll_post_later(mgl_poll *poll, sem_t *semaphore) {
    if (poll->to_post != NULL)
        sem_post(semaphore);
    else
        poll->to_post = semaphore;
}

/* Releasing and acquiring the GIL costs 0.4 us. A blocking wait always does so. Polls with zero timeout do
 * so only once in MGL_FAIRNESS times, for the sake of other threads. */
static int wait_for_events(mgl_poll *poll) {
    int ms = timeout_ms(poll);

    poll->waited = ms != 0;
    if (ms == 0 && poll->to_post == NULL && ++poll->zero_polls < MGL_FAIRNESS) return wait_in_kernel(poll, 0);
    poll->zero_polls = 0;
    mgl_thread_queue_begin_wait(poll->thread_queue);
    if (mgl_posted_any(&poll->thread_queue->posted)) ms = 0;
    PyThreadState *state = PyEval_SaveThread();
    mgl_poll_post_now(poll);
    int n = wait_in_kernel(poll, ms);
    int error = errno;
    PyEval_RestoreThread(state);
    mgl_thread_queue_end_wait(poll->thread_queue);
    errno = error;
    return n;
}

static void on_poll(struct mg_connection *c, int event, void *data) {
    (void) data;
    if (event != MG_EV_POLL) return;
    mgl_poll *poll = (mgl_poll *) c->mgr;
    uint64_t key;
    memcpy(&key, c->data, sizeof(key));
    uint32_t events;
    memcpy(&events, c->data + sizeof(key), sizeof(events));
    int fd = (int) (uint32_t) key;
    const registration *r = &poll->table[fd];
    poll->record(poll->loop, r->owner, events);
}

static bool grow_pool(mgl_poll *poll, int size) {
    struct mg_connection **pool = realloc(poll->pool, (size_t) size * sizeof(*pool));
    if (pool == NULL) return false;
    poll->pool = pool;
    while (poll->pool_size < size) {
        struct mg_connection *c = mg_alloc_conn(&poll->mgr);
        if (c == NULL) return false;
        c->fd = (void *) (size_t) -1; /* no descriptor, so Mongoose does no I/O on the connection */
        c->fn = on_poll;
        /* Each links to the previous one: mgr->conns = pool[n-1] links exactly n, then the base. */
        c->next = poll->pool_size > 0 ? poll->pool[poll->pool_size - 1] : poll->base;
        poll->pool[poll->pool_size++] = c;
    }
    return true;
}

/* Replaces epoll_wait() in Mongoose; see poll.h. Returns only events of the wake-up connection. */
static int mgl_hook(struct mg_mgr *mgr, struct epoll_event *out, int max) {
    mgl_poll *poll = (mgl_poll *) mgr;
    int mongoose_events = 0, ready = 0;
    int n = wait_for_events(poll);
    poll->failed = n < 0 ? errno : 0;
    if (n < 0) poll->waited = false; /* the timerfd may have expired without being reported */
    poll->full = n == poll->pool_size;
    struct epoll_event *ours = poll->events;
    for (int i = 0; i < n; i++) {
        uint64_t key = poll->events[i].data.u64;
        if (key == MGL_TIMER) {
            poll->timer_expires = MGL_NEVER;
            continue;
        }
        if (!(key & MGL_OURS)) {
            if (mongoose_events < max) out[mongoose_events++] = poll->events[i];
            atomic_store(&poll->thread_queue->woken, false);
            continue;
        }
        uint32_t fd = (uint32_t) key;
        uint32_t generation = (uint32_t) (key >> 32) & MGL_GENERATION;
        if ((int) fd >= poll->limit || poll->table[fd].owner == NULL ||
            poll->table[fd].generation != generation)
            continue; /* a stale event: the descriptor was closed or has a new owner */
        ours[ready++] = poll->events[i];
    }
    /* The walk starts at pool[ready-1] and ends at pool[0]: fill in that order. */
    for (int i = 0; i < ready; i++) {
        struct mg_connection *c = poll->pool[ready - 1 - i];
        uint64_t key = ours[i].data.u64 & ~MGL_OURS;
        uint32_t events = ours[i].events;
        memcpy(c->data, &key, sizeof(key));
        memcpy(c->data + sizeof(key), &events, sizeof(events));
    }
    if (ready > 0) mgr->conns = poll->pool[ready - 1];
    poll->linked = ready;
    return mongoose_events;
}

static bool make_wakeup(mgl_poll *poll);

int mgl_poll_run(mgl_poll *poll, int64_t deadline) {
    poll->deadline = deadline;
    poll->failed = 0;
    poll->linked = 0;
    mg_mgr_poll(&poll->mgr, 0);
    poll->mgr.conns = poll->base;
    /* A wait returns at most as many events as there are connections to link. The other events stay in
     * the kernel, so none is lost if memory is exhausted. The pool grows if there were more events. */
    if (poll->full && poll->pool_size < MGL_MAX_EVENTS) grow_pool(poll, poll->pool_size * 2);
    if (poll->wakeup && poll->base == NULL) make_wakeup(poll); /* retried in the next iteration */
    return poll->failed != 0 ? -poll->failed : poll->linked;
}

int mgl_poll_batch(const mgl_poll *poll) { return poll->pool_size; }

int mgl_poll_fd(const mgl_poll *poll) { return poll->mgr.epoll_fd; }

/* ------------------------------------------------------------ registrations ---- */

static bool grow_table(mgl_poll *poll, int fd) {
    size_t limit = poll->limit > 0 ? (size_t) poll->limit : 64;
    while (limit <= (size_t) fd) limit *= 2;
    if (limit > INT_MAX) return false; /* larger than the largest possible descriptor */
    registration *table = realloc(poll->table, limit * sizeof(*table));
    if (table == NULL) return false;
    memset(table + poll->limit, 0, (limit - (size_t) poll->limit) * sizeof(*table));
    poll->table = table;
    poll->limit = (int) limit;
    return true;
}

static uint64_t key_of(const mgl_poll *poll, int fd) {
    return MGL_OURS | (uint64_t) poll->table[fd].generation << 32 | (uint32_t) fd;
}

/* Sets the owner of a descriptor. */
static void set_owner(mgl_poll *poll, int fd, PyObject *owner, uint32_t events) {
    registration *r = &poll->table[fd];
    PyObject *previous = r->owner;
    r->events = events;
    Py_XINCREF(owner);
    r->owner = owner;
    Py_XDECREF(previous);
}

int mgl_poll_claim(mgl_poll *poll, int fd, PyObject *owner) {
    if (fd < 0) return -EBADF;
    if (fd >= poll->limit) {
        /* fileno() of an object may return any number. The table must not grow for a number that is
         * not an open descriptor. */
        if (fcntl(fd, F_GETFD) < 0) return -errno;
        if (!grow_table(poll, fd)) return -ENOMEM;
    }
    set_owner(poll, fd, owner, 0);
    return 0;
}

int mgl_poll_add(mgl_poll *poll, int fd, uint32_t events, PyObject *owner) {
    if (fd < 0) return -EBADF;
    if (mgl_poll_forked(poll)) return -EPERM;
    uint32_t generation = (poll->generation + 1) & MGL_GENERATION;
    struct epoll_event event = {
        .events = events,
        .data.u64 = MGL_OURS | (uint64_t) generation << 32 | (uint32_t) fd,
    };
    if (epoll_ctl(poll->mgr.epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0) {
        /* The kernel has a registration that the table does not have: it is that of a removed owner
         * whose open file has the same number again (dup2). Replace it. */
        if (errno != EEXIST || epoll_ctl(poll->mgr.epoll_fd, EPOLL_CTL_MOD, fd, &event) != 0)
            return -errno;
    }
    /* The kernel has accepted fd, so the table is not larger than the process's descriptor table. */
    if (fd >= poll->limit && !grow_table(poll, fd)) {
        epoll_ctl(poll->mgr.epoll_fd, EPOLL_CTL_DEL, fd, NULL);
        return -ENOMEM;
    }
    poll->generation = generation;
    poll->table[fd].generation = generation;
    set_owner(poll, fd, owner, events);
    return 0;
}

int mgl_poll_modify(mgl_poll *poll, int fd, uint32_t events) {
    if (mgl_poll_forked(poll)) return -EPERM;
    if (fd < 0 || fd >= poll->limit || poll->table[fd].owner == NULL) return -ENOENT;
    struct epoll_event event = {.events = events, .data.u64 = key_of(poll, fd)};
    /* ENOENT: the user has closed the descriptor, and its number refers to another file now. */
    if (epoll_ctl(poll->mgr.epoll_fd, EPOLL_CTL_MOD, fd, &event) != 0 &&
        (errno != ENOENT || epoll_ctl(poll->mgr.epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0))
        return -errno;
    poll->table[fd].events = events;
    return 0;
}

void mgl_poll_remove(mgl_poll *poll, int fd, bool in_kernel) {
    if (fd < 0 || fd >= poll->limit || poll->table[fd].owner == NULL) return;
    if (in_kernel && poll->table[fd].events != 0 && !mgl_poll_forked(poll))
        epoll_ctl(poll->mgr.epoll_fd, EPOLL_CTL_DEL, fd, NULL);
    set_owner(poll, fd, NULL, 0);
}

PyObject *mgl_poll_owner(const mgl_poll *poll, int fd) {
    return fd >= 0 && fd < poll->limit ? poll->table[fd].owner : NULL;
}

int mgl_poll_limit(const mgl_poll *poll) { return poll->limit; }

/* ---------------------------------------------------------------- wake-ups ---- */

/* Stock Mongoose closes and frees the connection if its recv() fails or memory is exhausted. */
static void on_wakeup(struct mg_connection *c, int event, void *data) {
    mgl_poll *poll = (mgl_poll *) c->mgr;
    if (event != MG_EV_CLOSE) {
        wufn(c, event, data);
        return;
    }
    pthread_mutex_lock(&poll->thread_queue->lock);
    wufn(c, event, data); /* closes the sending end */
    poll->base = NULL;
    pthread_mutex_unlock(&poll->thread_queue->lock);
    if (poll->pool_size > 0) poll->pool[0]->next = NULL;
}

/* Returns whether the connection is registered; Mongoose does not check its epoll_ctl() call. */
static bool is_registered(mgl_poll *poll, struct mg_connection *c) {
    struct epoll_event event = {.events = EPOLLIN | EPOLLERR | EPOLLHUP, .data.ptr = c};
    return epoll_ctl(poll->mgr.epoll_fd, EPOLL_CTL_MOD, (int) (size_t) c->fd, &event) == 0;
}

/* Replaces mg_wakeup_init() and uses an AF_UNIX datagram pair instead of a UDP pair on 127.0.0.1. The
 * pair is cheaper, does not drop datagrams when buffers are full, and works without a loopback
 * interface. The sender (mg_wakeup()) and the reader are stock Mongoose. If the pair cannot be created,
 * this calls mg_wakeup_init(). No other connection may be linked. Returns false with errno set. */
static bool make_wakeup(mgl_poll *poll) {
    int pair[2];
    struct mg_connection *c = NULL;
    errno = 0;
    if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) != 0) {
        errno = 0;
        if (!mg_wakeup_init(&poll->mgr)) {
            if (errno == 0) errno = ENOMEM;
            return false;
        }
        c = poll->mgr.conns;
    } else if ((c = mg_wrapfd(&poll->mgr, pair[1], wufn, NULL)) == NULL) {
        close(pair[0]);
        close(pair[1]);
        errno = ENOMEM;
        return false;
    } else {
        poll->mgr.pipe.fd = pair[0];
    }
    int error = errno; /* set if Mongoose's epoll_ctl() failed */
    if (!is_registered(poll, c)) {
        if (error == 0) error = errno;
        close((int) (size_t) c->fd);
        mg_close_conn(c); /* also closes the other end */
        errno = error;
        return false;
    }
    c->fn = on_wakeup;
    pthread_mutex_lock(&poll->thread_queue->lock);
    poll->base = c;
    pthread_mutex_unlock(&poll->thread_queue->lock);
    if (poll->pool_size > 0) poll->pool[0]->next = c;
    return true;
}

void mgl_poll_wakeup(mgl_thread_queue *thread_queue) {
    if (!atomic_load(&thread_queue->waiting) || atomic_exchange(&thread_queue->woken, true)) return;
    /* The child of a fork must not wake its parent, and the lock may be held forever in it. */
    if (mgl_thread_queue_forked(thread_queue)) return;
    pthread_mutex_lock(&thread_queue->lock);
    mgl_poll *poll = thread_queue->poll;
    if (poll != NULL) {
        mgl_count(&thread_queue->wakeups, 1);
        errno = 0; /* mg_wakeup() does not report whether its send() failed */
        if (poll->base == NULL || !mg_wakeup(&poll->mgr, poll->base->id, "", 0) || errno != 0) {
            /* Use the timerfd, which also ends a wait: let it expire immediately. */
            struct itimerspec now = {.it_value = {0, 1}};
            if (timerfd_settime(poll->timer_fd, TFD_TIMER_ABSTIME, &now, NULL) != 0)
                atomic_store(&thread_queue->woken, false);
        }
    }
    pthread_mutex_unlock(&thread_queue->lock);
}

/* ---------------------------------------------------------------- lifetime ---- */

/* Sets the poll object that wake-ups use; NULL disables them. */
static void set_poll_to_wake(mgl_thread_queue *thread_queue, mgl_poll *poll) {
    pthread_mutex_lock(&thread_queue->lock);
    thread_queue->poll = poll;
    pthread_mutex_unlock(&thread_queue->lock);
}

/* Called for a new loop, and in the only thread of a forked child. */
static void reset_thread_queue(mgl_thread_queue *thread_queue) {
    pthread_mutex_init(&thread_queue->lock, NULL);
    atomic_store(&thread_queue->waiting, false);
    atomic_store(&thread_queue->woken, false);
    thread_queue->fork_count = fork_count;
}

mgl_poll *mgl_poll_new(PyObject *loop, mgl_record_fn record, mgl_thread_queue *thread_queue, mgl_counters *count,
                       bool enable_wakeup) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks);

    mgl_poll *poll = calloc(1, sizeof(*poll));
    if (poll == NULL) return (mgl_poll *) PyErr_NoMemory();
    struct sigaction sigpipe; /* mg_mgr_init() ignores SIGPIPE in the whole process; restore it */
    pthread_mutex_lock(&sigpipe_lock);
    sigaction(SIGPIPE, NULL, &sigpipe);
    mg_mgr_init(&poll->mgr);
    int error = errno;
    sigaction(SIGPIPE, &sigpipe, NULL);
    pthread_mutex_unlock(&sigpipe_lock);
    if (poll->mgr.epoll_fd < 0) {
        errno = error;
        PyErr_SetFromErrno(PyExc_OSError);
        free(poll);
        return NULL;
    }
    poll->loop = loop;
    poll->record = record;
    poll->thread_queue = thread_queue;
    poll->count = count;
    poll->fork_count = fork_count;
    reset_thread_queue(thread_queue);
    if (!make_timer(poll)) {
        error = errno;
        mgl_poll_free(poll);
        errno = error;
        PyErr_SetFromErrno(PyExc_OSError);
        return NULL;
    }
    poll->wakeup = enable_wakeup;
    if (enable_wakeup && !make_wakeup(poll)) {
        error = errno;
        mgl_poll_free(poll);
        errno = error;
        PyErr_SetFromErrno(PyExc_OSError);
        return NULL;
    }
    if (!grow_pool(poll, MGL_FIRST_POOL) || !grow_table(poll, 63)) {
        mgl_poll_free(poll);
        return (mgl_poll *) PyErr_NoMemory();
    }
    if (enable_wakeup) set_poll_to_wake(thread_queue, poll);
    return poll;
}

/* Replaces the epoll set that the process shares with its parent with a new one of the same number.
 * Closing the child's descriptor does not change the parent's set. */
static bool replace_epoll(mgl_poll *poll) {
    int fresh = epoll_create1(EPOLL_CLOEXEC);
    if (fresh < 0) return false;
    bool done = dup3(fresh, poll->mgr.epoll_fd, O_CLOEXEC) >= 0;
    close(fresh);
    return done;
}

static void close_wakeup(mgl_poll *poll) {
    if (poll->base == NULL) return;
    close((int) (size_t) poll->base->fd);
    poll->mgr.conns = poll->base;
    mg_close_conn(poll->base); /* the handler closes the other end */
    poll->mgr.conns = NULL;
}

int mgl_poll_adopt(mgl_poll *poll) {
    if (!mgl_poll_forked(poll)) return 0;
    if (!replace_epoll(poll)) return -errno;
    reset_thread_queue(poll->thread_queue);
    close(poll->timer_fd);
    if (!make_timer(poll)) return -errno;
    close_wakeup(poll);
    if (poll->wakeup && !make_wakeup(poll)) return -errno;
    poll->fork_count = fork_count;
    poll->to_post = NULL;
    for (int fd = 0; fd < poll->limit; fd++) {
        registration *r = &poll->table[fd];
        if (r->events == 0) continue;
        struct epoll_event event = {.events = r->events, .data.u64 = key_of(poll, fd)};
        /* Ignore failures: the descriptor has been closed, so nothing waits for it any more. */
        epoll_ctl(poll->mgr.epoll_fd, EPOLL_CTL_ADD, fd, &event);
    }
    return 0;
}

void mgl_poll_free(mgl_poll *poll) {
    if (mgl_poll_forked(poll)) reset_thread_queue(poll->thread_queue);
    set_poll_to_wake(poll->thread_queue, NULL);
    for (int fd = 0; fd < poll->limit; fd++) mgl_poll_remove(poll, fd, true);
    if (poll->timer_fd >= 0) close(poll->timer_fd);
    free(poll->table);
    poll->limit = 0;
    poll->table = NULL;
    /* mg_mgr_free() unregisters the wake-up connection, which must not affect the parent's epoll set. */
    if (mgl_poll_forked(poll) && !replace_epoll(poll)) {
        close(poll->mgr.epoll_fd);
        poll->mgr.epoll_fd = -1;
    }
    /* Mongoose frees the connections, and requires a connection to be linked while it does so. */
    while (poll->pool_size > 0) {
        struct mg_connection *c = poll->pool[--poll->pool_size];
        c->fn = NULL;
        c->next = NULL;
        poll->mgr.conns = c;
        mg_close_conn(c);
    }
    free(poll->pool);
    poll->pool = NULL;
    poll->wakeup = false;
    poll->mgr.conns = poll->base;
    poll->deadline = 0; /* mg_mgr_free() polls once and must not wait */
    mg_mgr_free(&poll->mgr);
    free(poll);
}
