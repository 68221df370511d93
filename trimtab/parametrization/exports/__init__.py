"""One parametrization in other tools' words: torchtitan, DeepSpeed, Megatron-LM, optax, JSON.

Reading order: `record` (what an export is and how it is read back), `tools` (`p.export`: one name to one
writer), then one file per tool: `torchtitan`, `deepspeed`, `megatron`, `optax`, `plain`. No tool is imported;
each file says at its top which words of the tool it speaks, as of which version.
"""
