/*
 * rebuild.c - another life for an instance: cleared, or rebuilt in secret.
 *
 * Both come down to making another life visible (life.c): an empty one, or the
 * twin that was filled meanwhile.
 */
#include "base/status.h"
#include "index/writer.h"

static kve_status
fail_gone(struct kve_error *err, kve_instance instance)
{
    return kve_fail(err, KVE_E_NOT_FOUND,
        "there is no instance %llx, or no twin of it",
        (unsigned long long)instance);
}

kve_status
kve_index_clear(kve_index *index, kve_instance instance, uint32_t tiers,
    struct kve_error *err)
{
    struct kve_inst *inst;

    if (tiers >> KVE_TIERS != 0)
        return kve_fail(err, KVE_E_INVAL,
            "tiers is 0x%x; it is a set of 1 << KVE_TIER_*, or 0 for all",
            tiers);
    inst = kve_inst_lock(index, instance);
    if (inst == NULL)
        return fail_gone(err, instance);
    if (tiers == 0)
        inst = kve_inst_renew(inst);
    else
        inst = kve_inst_clear_tiers(inst, tiers);
    kve_index_count(inst, KVE_COUNTER_INDEX_CLEARS, 1);
    kve_space_unlock(inst->space);
    return KVE_OK;
}

kve_status
kve_index_rebuild_begin(kve_index *index, kve_instance instance,
    kve_instance *ret_twin, struct kve_error *err)
{
    struct kve_inst *inst =
        (instance & KVE_TWIN) != 0 ? NULL : kve_inst_lock(index, instance);
    kve_status status = KVE_OK;
    struct kve_slot *slot;

    if (inst == NULL)
        return fail_gone(err, instance);
    slot = inst->slot;
    if (slot->twin != NULL) {
        status = kve_fail(err, KVE_E_IN_USE,
            "the instance is being rebuilt already; commit or abort that "
            "first");
    } else {
        slot->twin = kve_inst_create(slot, true);
        if (slot->twin == NULL)
            status = kve_fail_nomem(err, "a twin to rebuild an instance");
    }
    kve_space_unlock(inst->space);
    if (status == KVE_OK)
        *ret_twin = instance | KVE_TWIN;
    return status;
}

kve_status
kve_index_rebuild_commit(
    kve_index *index, kve_instance instance, struct kve_error *err)
{
    struct kve_inst *twin = kve_inst_lock(index, instance | KVE_TWIN);
    struct kve_slot *slot;

    if (twin == NULL)
        return fail_gone(err, instance);
    slot = twin->slot;
    slot->twin = NULL;
    /* In an instance of sets copies count as one from now on. */
    twin->counts = slot->counting == KVE_COUNTING_COPIES;
    if (!twin->counts)
        kve_hold_fold(twin);
    kve_inst_show(slot, twin);
    kve_space_unlock(twin->space);
    return KVE_OK;
}

kve_status
kve_index_rebuild_abort(
    kve_index *index, kve_instance instance, struct kve_error *err)
{
    struct kve_inst *twin = kve_inst_lock(index, instance | KVE_TWIN);

    if (twin == NULL)
        return fail_gone(err, instance);
    twin->slot->twin = NULL;
    kve_inst_retire(twin);
    kve_space_unlock(twin->space);
    return KVE_OK;
}
