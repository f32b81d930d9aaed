/*
 * server_route.c - see server_route.h.
 */
#include "http/server_route.h"

#include "base/alloc.h"

#include <stdio.h>
#include <string.h>

#define MAX_ROUTES 8u /* of one path */
#define SLOTS 512u    /* a power of two, far above the number of paths */

/* A path, and its routes by method. */
struct place {
    const char *path;
    size_t len;
    const struct kve_http_route *routes[MAX_ROUTES];
    unsigned n_routes;
    char allow[48];
    struct place *shorter; /* of prefixes */
};

struct kve_router {
    struct place *slots[SLOTS];
    struct place *prefixes; /* the longest first */
    unsigned n_places;
};

static const struct {
    const char *name;
    enum kve_method method;
} methods[] = { { "GET", KVE_METHOD_GET }, { "HEAD", KVE_METHOD_HEAD },
    { "POST", KVE_METHOD_POST }, { "PUT", KVE_METHOD_PUT },
    { "DELETE", KVE_METHOD_DELETE } };

#define N_METHODS (sizeof(methods) / sizeof(methods[0]))

enum kve_method
kve_method_of(const char *text)
{
    for (size_t i = 0; i < N_METHODS; i++)
        if (strcmp(text, methods[i].name) == 0)
            return methods[i].method;
    return KVE_METHOD_OTHER;
}

static unsigned
hash_of(const char *path, size_t *ret_len)
{
    uint32_t h = 2166136261u;
    const char *p = path;

    for (; *p != '\0'; p++)
        h = (h ^ (uint8_t)*p) * 16777619u;
    *ret_len = (size_t)(p - path);
    return (h ^ (h >> 15)) & (SLOTS - 1);
}

static struct place *
make_place(const char *path, size_t len)
{
    struct place *place = kve_mem_zalloc(1, sizeof(*place));

    if (place != NULL) {
        place->path = path;
        place->len = len;
    }
    return place;
}

/* Where the place of a path is, or would be. */
static struct place **
slot_of(struct kve_router *router, const char *path, size_t *ret_len)
{
    unsigned i = hash_of(path, ret_len);

    while (
        router->slots[i] != NULL && strcmp(router->slots[i]->path, path) != 0)
        i = (i + 1) & (SLOTS - 1);
    return &router->slots[i];
}

static struct place **
prefix_of(struct kve_router *router, const char *path, size_t *ret_len)
{
    struct place **at = &router->prefixes;

    *ret_len = strlen(path);
    while (
        *at != NULL && strcmp((*at)->path, path) != 0 && (*at)->len >= *ret_len)
        at = &(*at)->shorter;
    return at;
}

static void
add_allow(struct place *place, unsigned set)
{
    size_t len = 0;

    place->allow[0] = '\0';
    for (size_t i = 0; i < N_METHODS; i++)
        if ((set & methods[i].method) != 0)
            len +=
                (size_t)snprintf(place->allow + len, sizeof(place->allow) - len,
                    "%s%s", len > 0 ? ", " : "", methods[i].name);
}

static bool
add(struct kve_router *router, const struct kve_http_route *route)
{
    size_t len;
    bool prefix = (route->flags & KVE_ROUTE_PREFIX) != 0;
    struct place **at = prefix ? prefix_of(router, route->path, &len)
                               : slot_of(router, route->path, &len);
    unsigned set = 0;

    if (*at == NULL || strcmp((*at)->path, route->path) != 0) {
        struct place *place = make_place(route->path, len);

        /* Half of the table stays empty: a search ends soon. */
        if (place == NULL || router->n_places == SLOTS / 2) {
            kve_mem_free(place);
            return false;
        }
        router->n_places++;
        place->shorter = *at;
        *at = place;
    }
    if ((*at)->n_routes == MAX_ROUTES)
        return false;
    (*at)->routes[(*at)->n_routes++] = route;
    for (unsigned i = 0; i < (*at)->n_routes; i++)
        set |= (*at)->routes[i]->methods;
    if ((set & KVE_METHOD_GET) != 0)
        set |= KVE_METHOD_HEAD;
    add_allow(*at, set);
    return true;
}

struct kve_router *
kve_router_create(const struct kve_http_route *const *tables, bool test)
{
    struct kve_router *router = kve_mem_zalloc(1, sizeof(*router));

    for (; router != NULL && *tables != NULL; tables++)
        for (const struct kve_http_route *route = *tables; route->path != NULL;
             route++) {
            if ((route->flags & KVE_ROUTE_TEST) != 0 && !test)
                continue;
            if (!add(router, route)) {
                kve_router_destroy(router);
                return NULL;
            }
        }
    return router;
}

void
kve_router_destroy(struct kve_router *router)
{
    if (router == NULL)
        return;
    for (size_t i = 0; i < SLOTS; i++)
        kve_mem_free(router->slots[i]);
    while (router->prefixes != NULL) {
        struct place *shorter = router->prefixes->shorter;

        kve_mem_free(router->prefixes);
        router->prefixes = shorter;
    }
    kve_mem_free(router);
}

static const struct kve_http_route *
choose(
    const struct place *place, enum kve_method method, const char **ret_allow)
{
    unsigned wanted =
        method == KVE_METHOD_HEAD ? KVE_METHOD_GET : (unsigned)method;

    *ret_allow = place->allow;
    for (unsigned i = 0; i < place->n_routes; i++)
        if ((place->routes[i]->methods & wanted) != 0)
            return place->routes[i];
    return NULL;
}

const struct kve_http_route *
kve_router_find(const struct kve_router *router, const char *path,
    enum kve_method method, const char **ret_allow)
{
    size_t len;
    unsigned i = hash_of(path, &len);

    *ret_allow = NULL;
    for (; router->slots[i] != NULL; i = (i + 1) & (SLOTS - 1))
        if (router->slots[i]->len == len &&
            memcmp(router->slots[i]->path, path, len) == 0)
            return choose(router->slots[i], method, ret_allow);
    for (const struct place *place = router->prefixes; place != NULL;
         place = place->shorter)
        if (len > place->len && memcmp(place->path, path, place->len) == 0)
            return choose(place, method, ret_allow);
    return NULL;
}
