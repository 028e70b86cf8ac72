"""A history checker: workers use real locks under faults, and a checker judges what they logged.

- ``log``: what a worker writes, one line for each event;
- ``checker``: the rules, over the whole history of a run;
- ``backends``: from an address to backends that log their releases and extensions;
- ``observer``, ``worker_blocking``, ``worker_async``, ``worker``, ``celery_app``: the workers;
- ``stores``, ``stores_of_sql``: the servers that the workers use;
- ``fault``, ``faults_of_redis``, ``faults_of_sql``: what goes wrong, one small class each;
- ``faults``: all of them;
- ``plan``, ``runner``: one run, from its seed to its verdict;
- ``table``, ``__main__``: many runs, and the table of their results (``tox run -e faults``).
"""
