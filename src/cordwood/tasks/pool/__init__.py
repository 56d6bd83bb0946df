"""Run tasks in a pool of processes of this machine, without Java.

    this process ──requests──► server ──forks──► workers    a socket between this process and each worker
                                                            for tasks and outcomes

The server has one thread, so that a fork is safe, and has loaded the kernels, which takes longer than a small clean.
All processes end with this one: the server sees its socket close, and the system kills workers whose server has ended.

`concurrent.futures`, `multiprocessing.Pool` and `loky` abandon all tasks if one worker is killed, and cannot end a
hanging worker; loading the kernels into their servers takes a second. So the pool is our own.
"""
