"""Runs tasks in a pool of processes of this machine, without Java.

    this process ──asks──► server ──forks──► workers        a socket between this process and each worker
                                                            for tasks and outcomes

The server has one thread, so that a fork is safe, and the kernels, which take longer to load than a small clean. All
end with this process: the server sees its socket close, and the system kills workers whose server has ended.

`concurrent.futures`, `multiprocessing.Pool` and `loky` give up all tasks if one worker is killed, and cannot end one
that hangs; loading the kernels into a server of theirs takes a second. So the pool is ours.
"""
