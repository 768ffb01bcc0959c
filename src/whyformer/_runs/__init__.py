"""Runs on disk that can be resumed: a plan, shards of rows, and a lock. Judge and audit share them.

    with lock_folder(folder):
        write_or_check_plan(plan, folder)          refuses a folder that holds another run
        store = ShardStore(folder / "rows", plan, json_lines)
        for number in missing: store.write_rows(number, ...)

The same call resumes a run that was stopped; a shard that is damaged, or belongs to another plan, is computed again.
"""
