"""A network cut into stages, as a Relax program: `schedule_stages.ScheduleStages` is the pass, all other modules are
parts.
"""
