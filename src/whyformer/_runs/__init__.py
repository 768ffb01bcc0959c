"""What runs share: their arguments, the preparation and choice of what they measure, and their folders on disk.

    with lock_folder(folder):
        write_or_check_plan(plan, folder)          refuses a folder that holds another run
        store = ShardStore(folder / "rows", plan, JSON_LINES)
        for number in missing: store.write_rows(number, ...)

The same call resumes a run that was stopped; a shard that is damaged, or belongs to another plan, is computed again.
Judge, audit, bulk and the summary of a bulk run stand on this room, none of them on another.
"""
