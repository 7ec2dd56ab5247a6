"""`gpukern selftest`: what this machine and this plugin can resolve, against truth that is not our own timer.

Fresh child processes take the readings (`session`, `child`), the command starts them one after another
(`processes`), what they found is stored whole (`recording`), and everything that is concluded from it is
computed from that record alone (`targets`), so a recorded run is judged again without a GPU.
"""
