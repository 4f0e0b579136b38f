// A pool of threads that walk a list of operations together, taking items as they come for them.
//
// There is one phase of one operation at a time. Its items are handed out through `claims`, a count that carries the phase's number, so
// that a thread that was away for a while cannot take an item of a phase that is over. Whoever completes the last item opens the next
// phase. Nobody waits for a thread that has nothing in its hands: where other processes want the cores, one that is late simply misses
// what the others have done meanwhile. (With barriers that all must reach, a step took ten times as long beside one busy process.)
//
// Who finds nothing to take spins for a moment, because the next phase is microseconds away, and then sleeps: an idle server uses no CPU.
// Threads do not survive fork(): the first list run in a child starts them anew.
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "octavo.h"

#if defined(__x86_64__) || defined(__i386__)
#define RELAX() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define RELAX() __asm__ __volatile__("yield")
#else
#define RELAX() ((void)0)
#endif

enum { SPINS = 3000 }; // some 30 to 100 microseconds

#define LIST_DONE 0x80000000ull
#define ITEMS_LEFT 0x7fffffffull

struct pool {
    // What threads write concurrently is a cache line apart.
    _Alignas(64) atomic_ullong claims; // phases opened so far << 32 | items of this one that nobody has taken; or LIST_DONE in their place
    _Alignas(64) atomic_llong completed; // items of this phase
    // The open phase: written by the thread that opens it, before `claims` changes, and read only by threads that hold an item, while
    // nobody can open another.
    _Alignas(64) int64_t num_items;
    const op_t *ops;
    const step_t *step;
    int32_t num_ops, op, phase;
    _Alignas(64) atomic_int sleeping;
    atomic_int is_closing;
    pthread_mutex_t callers; // one list at a time
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    int32_t count;
    pid_t owner; // process that the threads live in
    pthread_t *threads; // [count - 1]
    worker_t *workers; // [count]; worker 0 is the caller
};

void *scratch(worker_t *worker, size_t bytes) {
    if (bytes > worker->scratch_bytes) {
        free(worker->scratch);
        bytes = (bytes + 4095) / 4096 * 4096;
        worker->scratch = aligned_alloc(64, bytes);
        if (!worker->scratch) {
            fprintf(stderr, "octavo: no memory left for %zu bytes of working space\n", bytes);
            abort(); // the other threads wait for results that cannot come
        }
        worker->scratch_bytes = bytes;
    }
    return worker->scratch;
}

// ---- Phases ------------------------------------------------------------------------------------------------------------------------

static void wake_sleepers(pool_t *pool) {
    if (atomic_load(&pool->sleeping)) {
        pthread_mutex_lock(&pool->mutex);
        pthread_cond_broadcast(&pool->wake);
        pthread_mutex_unlock(&pool->mutex);
    }
}

// Moves on to the next phase that has items, or to the end of the list. Called by one thread while no item is out.
static void open_phase(pool_t *pool, int32_t op, int32_t phase) {
    int64_t items = 0;
    for (; op < pool->num_ops; op++, phase = 0) {
        items = kernel_of(&pool->ops[op])->count(pool->step, pool->ops[op].args, pool->count, phase);
        if (items > 0) break;
    }
    pool->op = op;
    pool->phase = phase;
    atomic_store_explicit(&pool->completed, 0, memory_order_relaxed);
    pool->num_items = items;
    const unsigned long long opened = (atomic_load_explicit(&pool->claims, memory_order_relaxed) >> 32) + 1;
    // From here on other threads take items, and after the last phase the caller may begin another list.
    atomic_store(&pool->claims, opened << 32 | (op == pool->num_ops ? LIST_DONE : (unsigned long long)items));
    wake_sleepers(pool);
}

// Takes one item and does it; returns 0 if there was none to take. `seen` becomes the claims that were found then.
static int do_item(worker_t *worker, unsigned long long *seen) {
    pool_t *pool = worker->pool;
    *seen = atomic_load_explicit(&pool->claims, memory_order_acquire);
    do {
        if ((*seen & ITEMS_LEFT) == 0) return 0;
    } while (!atomic_compare_exchange_weak_explicit(&pool->claims, seen, *seen - 1, memory_order_acq_rel, memory_order_acquire));
    const op_t *op = &pool->ops[pool->op];
    worker->step = pool->step;
    kernel_of(op)->run(worker, op->args, pool->count, pool->phase, pool->num_items - (int64_t)(*seen & ITEMS_LEFT));
    const int64_t items = pool->num_items; // not after the next line: another thread may have opened a phase by then
    if (atomic_fetch_add_explicit(&pool->completed, 1, memory_order_acq_rel) + 1 == items) open_phase(pool, pool->op, pool->phase + 1);
    return 1;
}

// Returns when another phase than that of `seen` is open.
static void wait_for_phase(pool_t *pool, unsigned long long seen) {
    for (int spins = 0; spins < SPINS; spins++) {
        if (atomic_load_explicit(&pool->claims, memory_order_acquire) >> 32 != seen >> 32) return;
        RELAX();
    }
    // A sleeper counts itself before it looks a last time, and claims change before the count is read: one of the two sees the other.
    pthread_mutex_lock(&pool->mutex);
    atomic_fetch_add(&pool->sleeping, 1);
    while (atomic_load(&pool->claims) >> 32 == seen >> 32) pthread_cond_wait(&pool->wake, &pool->mutex);
    atomic_fetch_sub(&pool->sleeping, 1);
    pthread_mutex_unlock(&pool->mutex);
}


// ---- Threads -----------------------------------------------------------------------------------------------------------------------

static void *thread_main(void *argument) {
    worker_t *worker = argument;
    unsigned long long seen;
    while (!atomic_load_explicit(&worker->pool->is_closing, memory_order_acquire))
        if (!do_item(worker, &seen)) wait_for_phase(worker->pool, seen);
    return NULL;
}

// Called with the pool new, or in a child process that inherited its memory but none of its threads.
static void start_threads(pool_t *pool) {
    pthread_mutex_init(&pool->callers, NULL);
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->wake, NULL);
    atomic_store(&pool->claims, LIST_DONE);
    atomic_store(&pool->sleeping, 0);
    pool->owner = getpid();
    pool->workers[0].pool = pool;
    for (int32_t i = 1; i < pool->count; i++) {
        pool->workers[i].pool = pool;
        if (pthread_create(&pool->threads[i - 1], NULL, thread_main, &pool->workers[i])) {
            pool->count = i; // as many as the system grants
            break;
        }
    }
}

pool_t *octavo_pool_create(int32_t num_threads) {
    pool_t *pool = aligned_alloc(64, (sizeof(pool_t) + 63) / 64 * 64);
    if (!pool) return NULL;
    *pool = (pool_t){.count = num_threads < 1 ? 1 : num_threads};
    pool->threads = calloc((size_t)pool->count, sizeof(pthread_t));
    pool->workers = calloc((size_t)pool->count, sizeof(worker_t));
    if (!pool->threads || !pool->workers) return NULL;
    start_threads(pool);
    return pool;
}

void octavo_pool_destroy(pool_t *pool) {
    if (pool->owner == getpid()) {
        atomic_store(&pool->is_closing, 1);
        open_phase(pool, pool->num_ops, 0);
        for (int32_t i = 1; i < pool->count; i++) pthread_join(pool->threads[i - 1], NULL);
    }
    for (int32_t i = 0; i < pool->count; i++) free(pool->workers[i].scratch);
    free(pool->workers);
    free(pool->threads);
    free(pool);
}

int64_t octavo_pool_scratch_bytes(const pool_t *pool) {
    int64_t total = 0;
    for (int32_t i = 0; i < pool->count; i++) total += (int64_t)pool->workers[i].scratch_bytes;
    return total;
}

void octavo_run(pool_t *pool, const op_t *ops, int32_t num_ops, const step_t *step) {
    if (pool->owner != getpid()) start_threads(pool);
    pthread_mutex_lock(&pool->callers);
    pool->ops = ops;
    pool->num_ops = num_ops;
    pool->step = step;
    open_phase(pool, 0, 0);
    for (unsigned long long seen;;) {
        if (do_item(&pool->workers[0], &seen)) continue;
        if (seen & LIST_DONE) break;
        wait_for_phase(pool, seen);
    }
    pthread_mutex_unlock(&pool->callers);
}
