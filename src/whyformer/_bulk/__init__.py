"""Bulk: explain a whole data set, on this machine or on many, and lose nothing.

    run = bulk("demo/pets", "photos/", ["transformer_attribution", "rollout"], out="runs/photos")
    run.parts                                     a folder of Parquet files, one row per item and method
    run.failed                                    items with an error record

A plan fixes everything the rows depend on and cuts the input list into shards. Engines compute shards; this process
writes each as one file that is complete or missing. The same call resumes a run that was stopped.
"""
