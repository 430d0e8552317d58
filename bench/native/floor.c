/* SPDX-License-Identifier: GPL-2.0-only
 *
 * The floor: the minimal work of any server on epoll for a workload, without Python.
 *
 * One thread, level-triggered epoll, one shared buffer, recv() then send(). Its CPU time per
 * operation is the cost of the system calls; a loop's difference from it is the cost of the loop
 * and Python. In http mode it answers every request head with the same bytes. It is then the peer
 * of the HTTP client benchmarks, which must not be bound by their server.
 *
 *   floor --kind tcp|unix|udp|pipe --mode echo|reply|sink|source|http
 *         [--path UNIX_PATH] [--fds READ,WRITE] [--reply FILE] [--request-size N]
 *
 * Prints {"port": N, "pid": N} when it listens. Ends when it is killed.
 */
#define _GNU_SOURCE
#include "common.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>

enum mode { ECHO, REPLY, SINK, SOURCE, HTTP };

struct conn {
  int fd;
  int out_fd;        /* differs from fd for a pair of pipes only */
  size_t got;        /* bytes of the current request seen, or the number of CR LF CR LF matched */
  uint64_t total;    /* sink: bytes received */
  char *pending;     /* data that send() did not accept */
  size_t pending_len, pending_off;
  int writing;
};

static enum mode mode = ECHO;
static char *reply;
static size_t reply_len;
static size_t request_size = 1;
static int epfd;
static char buffer[256 * 1024];

static void want(struct conn *c, int writing) {
  if (c->writing == writing || c->fd != c->out_fd) return;
  c->writing = writing;
  /* Read nothing while output is blocked, because every real server needs back-pressure. */
  struct epoll_event ev = {.events = writing ? EPOLLOUT : EPOLLIN, .data.ptr = c};
  epoll_ctl(epfd, EPOLL_CTL_MOD, c->fd, &ev);
}

static void drop(struct conn *c) {
  close(c->fd);
  free(c->pending);
  free(c);
}

static ssize_t put(struct conn *c, const char *data, size_t len) {
  return c->fd == c->out_fd ? send(c->fd, data, len, MSG_NOSIGNAL) : write(c->out_fd, data, len);
}

/* Return false if the peer has closed the connection. */
static int push(struct conn *c, const char *data, size_t len) {
  while (len > 0 && c->pending_len == 0) {
    ssize_t n = put(c, data, len);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno != EAGAIN) return 0;
    if (n < 0) break;
    data += n;
    len -= (size_t) n;
  }
  if (len > 0) {
    c->pending = realloc(c->pending, c->pending_len + len);
    memcpy(c->pending + c->pending_len, data, len);
    c->pending_len += len;
    want(c, 1);
  }
  return 1;
}

static int flow(struct conn *c) {
  while (c->pending_off < c->pending_len) {
    ssize_t n = put(c, c->pending + c->pending_off, c->pending_len - c->pending_off);
    if (n < 0) return errno == EAGAIN;
    c->pending_off += (size_t) n;
    if (mode == SOURCE && c->pending_off == c->pending_len) c->pending_off = 0;
  }
  c->pending_off = c->pending_len = 0;
  want(c, 0);
  return 1;
}

static int answer(struct conn *c, const char *data, size_t len) {
  size_t replies = 0;
  switch (mode) {
    case ECHO:
      return push(c, data, len);
    case SINK:
      c->total += len;
      return 1;
    case SOURCE:
      c->pending = malloc(reply_len);
      memcpy(c->pending, reply, reply_len);
      c->pending_len = reply_len;
      want(c, 1);
      return 1;
    case REPLY:
      c->got += len;
      replies = c->got / request_size;
      c->got %= request_size;
      break;
    case HTTP:
      for (size_t i = 0; i < len; i++) {
        c->got = data[i] == "\r\n\r\n"[c->got] ? c->got + 1 : data[i] == '\r';
        if (c->got == 4) {
          c->got = 0;
          replies++;
        }
      }
      break;
  }
  while (replies-- > 0) {
    if (!push(c, reply, reply_len)) return 0;
  }
  return 1;
}

static void serve(struct conn *c, uint32_t events) {
  if (c->writing) {
    if (!flow(c)) drop(c);
    return;
  }
  if (!(events & (EPOLLIN | EPOLLHUP | EPOLLERR))) return;
  ssize_t n = c->fd == c->out_fd ? recv(c->fd, buffer, sizeof buffer, 0)
                                 : read(c->fd, buffer, sizeof buffer);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n == 0 && mode == SINK) push(c, (char *) &c->total, sizeof c->total);
  if (n <= 0 || !answer(c, buffer, (size_t) n)) drop(c);
}

static void add(int fd, int out_fd) {
  struct conn *c = calloc(1, sizeof *c);
  int one = 1;
  c->fd = fd;
  c->out_fd = out_fd;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  struct epoll_event ev = {.events = EPOLLIN, .data.ptr = c};
  if (epoll_ctl(epfd, EPOLL_CTL_ADD, fd, &ev) < 0) die("epoll_ctl");
}

static void datagrams(int fd) {
  for (;;) {
    struct sockaddr_storage from;
    socklen_t len = sizeof from;
    ssize_t n = recvfrom(fd, buffer, sizeof buffer, 0, (struct sockaddr *) &from, &len);
    if (n < 0) return;
    sendto(fd, buffer, (size_t) n, MSG_NOSIGNAL, (struct sockaddr *) &from, len);
  }
}

static int listener(const char *kind, const char *path) {
  int udp = strcmp(kind, "udp") == 0;
  int local = strcmp(kind, "unix") == 0;
  int one = 1, port = 0;
  int fd = socket(local ? AF_UNIX : AF_INET,
                  (udp ? SOCK_DGRAM : SOCK_STREAM) | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) die("socket");
  if (local) {
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    snprintf(un.sun_path, sizeof un.sun_path, "%s", path);
    if (bind(fd, (struct sockaddr *) &un, sizeof un) < 0) die("bind");
  } else {
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof in;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (struct sockaddr *) &in, sizeof in) < 0) die("bind");
    getsockname(fd, (struct sockaddr *) &in, &len);
    port = ntohs(in.sin_port);
  }
  if (!udp && listen(fd, 4096) < 0) die("listen");
  printf("{\"port\": %d, \"pid\": %d}\n", port, (int) getpid());
  fflush(stdout);
  return fd;
}

int main(int argc, char **argv) {
  const char *kind = "tcp", *path = "", *how = "echo";
  int in_fd = -1, out_fd = -1;
  for (int i = 1; i + 1 < argc; i += 2) {
    if (strcmp(argv[i], "--kind") == 0) kind = argv[i + 1];
    else if (strcmp(argv[i], "--mode") == 0) how = argv[i + 1];
    else if (strcmp(argv[i], "--path") == 0) path = argv[i + 1];
    else if (strcmp(argv[i], "--fds") == 0) sscanf(argv[i + 1], "%d,%d", &in_fd, &out_fd);
    else if (strcmp(argv[i], "--reply") == 0) reply = read_file(argv[i + 1], &reply_len);
    else if (strcmp(argv[i], "--request-size") == 0) request_size = (size_t) atoi(argv[i + 1]);
    else {
      fprintf(stderr, "floor: unknown option %s\n", argv[i]);
      return 3;
    }
  }
  if (strcmp(how, "reply") == 0) mode = REPLY;
  if (strcmp(how, "sink") == 0) mode = SINK;
  if (strcmp(how, "source") == 0) mode = SOURCE;
  if (strcmp(how, "http") == 0) mode = HTTP;
  signal(SIGPIPE, SIG_IGN);   /* pipes do not support MSG_NOSIGNAL */
  raise_fd_limit();
  epfd = epoll_create1(EPOLL_CLOEXEC);
  int lfd = -1;
  if (in_fd >= 0) {
    fcntl(in_fd, F_SETFL, O_NONBLOCK);
    add(in_fd, out_fd);
    printf("{\"port\": 0, \"pid\": %d}\n", (int) getpid());
    fflush(stdout);
  } else {
    lfd = listener(kind, path);
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = NULL};
    epoll_ctl(epfd, EPOLL_CTL_ADD, lfd, &ev);
  }
  for (;;) {
    struct epoll_event evs[1024];
    int n = epoll_wait(epfd, evs, 1024, -1);
    for (int i = 0; i < n; i++) {
      if (evs[i].data.ptr != NULL) {
        serve(evs[i].data.ptr, evs[i].events);
      } else if (strcmp(kind, "udp") == 0) {
        datagrams(lfd);
      } else {
        int fd;
        while ((fd = accept4(lfd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) add(fd, fd);
      }
    }
  }
}
