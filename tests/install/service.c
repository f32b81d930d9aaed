/* A program that runs the service, as whoever installed it would write it. */
#include <kvevents/kvevents.h>
#include <kvevents/service.h>

#include <stdio.h>

int
main(void)
{
    struct kve_service_opts opts = KVE_SERVICE_OPTS_INIT;
    kve_index *index = NULL;
    kve_ingest *ingest = NULL;
    kve_service *service = NULL;
    struct kve_error err = { KVE_OK, 0, 0, "" };
    int result = 1;

    opts.listen = "127.0.0.1:0";
    if (kve_index_create(NULL, &index, &err) != KVE_OK ||
        kve_ingest_create(NULL, index, NULL, &ingest, &err) != KVE_OK ||
        kve_service_create(index, ingest, &opts, &service, &err) != KVE_OK)
        fprintf(stderr, "%s\n", err.detail);
    else
        result = kve_service_port(service) == 0;
    kve_service_destroy(service);
    kve_ingest_destroy(ingest);
    kve_index_destroy(index);
    return result;
}
