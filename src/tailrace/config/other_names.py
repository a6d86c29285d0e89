"""The table of names that other systems give to settings: TRL, verl, slime and others.

* A name with a setting is accepted, and a hint is printed. It is here only if it means the same thing in the same unit
  wherever it is used. `batch_size`, say, counts prompts in one system and responses in another, so it is not accepted.
* A name with ``Instead`` is refused, and the refusal says what to write instead, or that there is no such thing.

`aliases.py` says where a name may be used. A name is dotted (`rollout.name`) if its last part alone says too little.
"""

from __future__ import annotations

from typing import NamedTuple


class Same(NamedTuple):
    """A name of a setting, with something to know about its value."""

    setting: str
    but: str


class Instead(NamedTuple):
    """What to do instead of giving a name that has no setting with the same meaning and unit."""

    text: str


TABLE: dict[str | Same | Instead, str] = {
    "model.path": (
        "model_name_or_path hf_checkpoint pretrain model.name actor.path policy.model_name actor_rollout_ref.model.path"
    ),
    "model.dtype": "torch_dtype",
    "model.lora_rank": "lora_rank lora_r actor_rollout_ref.model.lora_rank",
    "model.lora_alpha": "lora_alpha actor_rollout_ref.model.lora_alpha",
    "model.lora_target_modules": "target_modules lora_target_modules actor_rollout_ref.model.target_modules",
    "data.train": "train_files prompt_data",
    "data.shuffle": "shuffle_dataset rollout_shuffle",
    "data.prompt_column": "input_key prompt_key",
    "data.answer_column": "label_key output_key",
    "data.max_prompt_length": "rollout_max_prompt_len",
    "schedule.rollout_batch_size": (
        "data.train_batch_size trainer.train_batch_size num_prompts_per_step grpo.num_prompts_per_step"
    ),
    "rollout.n_samples_per_prompt": (
        "num_generations num_generations_per_prompt grpo.num_generations_per_prompt group_size rollout.n "
        "gconfig.n_samples actor_rollout_ref.rollout.n"
    ),
    "rollout.max_response_length": (
        "max_completion_length max_new_tokens gconfig.max_new_tokens response_length max_generate_length "
        "rollout_max_response_len data.max_response_length"
    ),
    "rollout.temperature": "gconfig.temperature rollout_temperature actor_rollout_ref.rollout.temperature",
    "rollout.top_p": "rollout_top_p actor_rollout_ref.rollout.top_p",
    "rollout.stop": "rollout_stop",
    "rollout.stop_token_ids": "rollout_stop_token_ids",
    "rollout.max_running": "max_num_seqs actor_rollout_ref.rollout.max_num_seqs",
    "rollout.tensor_parallel_size": (
        "vllm_tensor_parallel_size rollout_num_gpus_per_engine actor_rollout_ref.rollout.tensor_model_parallel_size"
    ),
    "reward.functions": "reward_funcs",
    "algorithm.advantage_estimator": "adv_estimator",
    "algorithm.kl_loss_coef": "beta actor_rollout_ref.actor.kl_loss_coef",
    Same(
        "algorithm.clip_ratio_low", but="the upper range is algorithm.clip_ratio_high, with a default of its own"
    ): "epsilon eps_clip",
    "algorithm.clip_ratio_low": "ratio_clip_min actor_rollout_ref.actor.clip_ratio_low",
    Same(
        "algorithm.clip_ratio_high", but="it counts from 1 with every loss: for a ceiling of 5 with cispo write 4"
    ): "epsilon_high",
    "algorithm.clip_ratio_high": "eps_clip_high ratio_clip_max actor_rollout_ref.actor.clip_ratio_high",
    "algorithm.clip_ratio_c": "eps_clip_c actor_rollout_ref.actor.clip_ratio_c",
    "algorithm.normalize_by_std": "norm_adv_by_std_in_grpo",
    "algorithm.overlong.filter_truncated": "mask_truncated_completions",
    "algorithm.lam": "lambd",
    "algorithm.critic_learning_rate": "critic.optim.lr critic.lr critic_lr",
    "algorithm.loss_agg_mode": "actor_rollout_ref.actor.loss_agg_mode",
    "algorithm.dynamic_sampling": "use_dynamic_sampling grpo.use_dynamic_sampling algorithm.filter_groups.enable",
    "algorithm.importance_sampling.type": "is_correction_type",
    "algorithm.importance_sampling.clip_high": "tis_clip rollout_is_threshold vllm_importance_sampling_cap",
    "algorithm.importance_sampling.clip_low": "tis_clip_low",
    "trainer.learning_rate": "lr actor_rollout_ref.actor.optim.lr",
    "trainer.weight_decay": "actor_rollout_ref.actor.optim.weight_decay",
    "trainer.betas": "actor_rollout_ref.actor.optim.betas",
    "trainer.warmup_steps": "lr_warmup_steps lr_warmup_iters actor_rollout_ref.actor.optim.lr_warmup_steps",
    "trainer.lr_schedule": "lr_scheduler_type lr_decay_style actor_rollout_ref.actor.optim.lr_scheduler_type",
    "trainer.max_grad_norm": "clip_grad grad_clip actor_rollout_ref.actor.grad_clip",
    "trainer.max_tokens_per_gpu": (
        "max_tokens_per_mb ppo_max_token_len_per_gpu actor_rollout_ref.actor.ppo_max_token_len_per_gpu"
    ),
    "trainer.gradient_checkpointing": (
        "enable_gradient_checkpointing actor_rollout_ref.model.enable_gradient_checkpointing"
    ),
    "schedule.max_steps": "num_rollout total_training_steps trainer.total_training_steps",
    "schedule.num_epochs": "num_train_epochs num_epoch total_epochs trainer.total_epochs",
    "eval_interval": "eval_steps test_freq trainer.test_freq val_period",
    "save_interval": "save_steps save_freq trainer.save_freq",
    "output_dir": "default_local_dir trainer.default_local_dir",
    "keep_checkpoints": "save_total_limit max_actor_ckpt_to_keep trainer.max_actor_ckpt_to_keep",
    "experiment_name": "run_name trainer.experiment_name",
    "project_name": "wandb_project trainer.project_name",
    # Batches
    Instead("leave it out: each batch of schedule.rollout_batch_size prompts is trained in one optimizer step, once"): (
        "ppo_mini_batch_size policy_mini_batch_size global_batch_size train_global_batch_size "
        "generation_batch_size steps_per_generation num_steps_per_rollout num_iterations ppo_epochs"
    ),
    Instead("leave it out: a batch is divided into micro-batches of at most trainer.max_tokens_per_gpu tokens"): (
        "gradient_accumulation_steps micro_batch_size ppo_micro_batch_size ppo_micro_batch_size_per_gpu "
        "log_prob_micro_batch_size log_prob_micro_batch_size_per_gpu log_prob_max_token_len_per_gpu "
        "use_dynamic_bsz use_dynamic_batch_size use_remove_padding"
    ),
    Instead(
        "set schedule.rollout_batch_size, which counts the prompts of one step on all devices;"
        " rollout.n_samples_per_prompt is the number of responses to each"
    ): "batch_size train_batch_size per_device_train_batch_size",
    # Evaluation
    Instead(
        "add an [[eval]] table with name and path to the recipe, and set eval_interval"
    ): "val_files test_files eval_prompt_data dataset_test_split",
    Instead("set it in the [[eval]] table: n_samples_per_prompt, max_response_length, temperature, top_p, top_k"): (
        "val_kwargs n_samples_per_eval_prompt num_generations_eval eval_max_response_len eval_temperature "
        "eval_top_p eval_top_k"
    ),
    Instead(
        "leave it out: an evaluation has all prompts of its set, and rollout.max_running says how many run at once"
    ): "val_batch_size per_device_eval_batch_size",
    Instead(
        "leave it out: with eval_interval the model is also evaluated before the first step"
    ): "val_before_train eval_on_start skip_eval_before_train",
    Instead("set eval_interval to a number of steps"): "eval_strategy do_eval",
    Instead("leave it out: `tailrace rollout` generates and scores without training"): "val_only debug_rollout_only",
    # Engine
    Instead("set rollout.engine to 'vllm'"): "use_vllm",
    Instead("set rollout.engine; there are 'native' and 'vllm'"): "rollout.name rollout_backend",
    Instead("set schedule.placement to 'colocated' (for colocate) or 'disaggregated' (for server)"): "vllm_mode",
    Instead("leave it out: schedule.preset says when responses are generated"): "rollout.mode",
    Instead("set rollout.num_instances to the number of engines"): "data_parallel_size",
    Instead("set rollout.prefill_chunk to the most tokens that are prefilled in one step"): "max_num_batched_tokens",
    Instead("leave it out; of the native engine, rollout.decoding 'plain' does without CUDA graphs"): "enforce_eager",
    Instead("set rollout.temperature, 0 for greedy decoding"): "do_sample",
    Instead(
        "leave it out: the KV cache gets what the memory allows; rollout.kv_tokens sets its size in tokens"
    ): "gpu_memory_utilization vllm_gpu_memory_utilization mem_fraction_static sglang_mem_fraction_static",
    Instead(
        "set data.max_prompt_length and rollout.max_response_length; a sequence has at most their sum"
    ): "max_model_len vllm_max_model_length rollout_max_context_len max_length max_seq_length prompt_length",
    Instead("leave it out: the run starts its own engines; rollout.num_instances is their number"): (
        "vllm_server_host vllm_server_port vllm_server_base_url vllm_server_timeout vllm_group_port rollout_external"
    ),
    Instead("there is no such setting; sampling has temperature, top_p, top_k, min_p, stop and stop_token_ids"): (
        "repetition_penalty presence_penalty frequency_penalty generation_kwargs engine_kwargs chat_template_kwargs"
    ),
    Instead("leave it out: the run takes care of it"): (
        "enable_chunked_prefill enable_prefix_caching load_format disable_log_stats calculate_log_probs "
        "gradient_checkpointing_kwargs use_liger_kernel use_fused_kernels disable_dropout dataloader_num_workers "
        "balance_batch balance_data"
    ),
    Instead("there is no such setting: a response is one turn, without tools"): (
        "multi_turn max_turns tools max_tool_calling_iterations environment_factory custom_generate_function_path "
        "rollout_function_path"
    ),
    # Devices
    Instead(
        "set trainer.num_ranks, rollout.num_instances and schedule.placement; docs/devices.md explains them"
    ): "n_gpus_per_node nnodes actor_num_nodes actor_num_gpus_per_node rollout_num_gpus num_gpus_per_node",
    Instead("set schedule.placement to 'colocated': rollout frees its memory while training runs"): (
        "colocate colocate_all offload offload_rollout free_cache_engine vllm_enable_sleep_mode"
    ),
    Instead(
        "there is no such setting: weights that are trained stay on their device; trainer.optimizer_device 'cpu' moves"
        " the optimizer's state to the host"
    ): "offload_train param_offload",
    Instead("set trainer.optimizer_device to 'cpu'"): "optimizer_offload optimizer_cpu_offload adam_offload",
    Instead("set trainer.gradients_device to 'cpu'"): "grad_offload",
    Instead(
        "set trainer.reference_device to 'cpu'"
    ): "ref_reward_offload ref_offload actor_rollout_ref.ref.fsdp_config.param_offload",
    Instead(
        "set trainer.tensor_parallel_size for training, rollout.tensor_parallel_size for rollout"
    ): "tensor_model_parallel_size",
    Instead("leave it out: the run asks Ray for what its workers need (ray.rollout.cpus and others)"): "num_cpus",
    Instead(
        "there is no such setting: trainer.num_ranks divides the model (FSDP2), trainer.tensor_parallel_size each layer"
    ): (
        "pipeline_model_parallel_size context_parallel_size expert_model_parallel_size "
        "ulysses_sequence_parallel_size sequence_parallel fsdp fsdp_config fsdp_size deepspeed strategy"
    ),
    # Loss and advantages
    Instead(
        "there is no entropy term in the loss; the metric actor/entropy shows the entropy"
    ): "entropy_coeff entropy_coef",
    Instead(
        "there is no KL penalty in the score; algorithm.kl_loss_coef adds one to the loss"
    ): "use_kl_in_reward kl_coef kl_ctrl",
    Instead("leave it out: the KL term is there if algorithm.kl_loss_coef is above 0"): "use_kl_loss",
    Instead("leave it out: the KL term is k3, also called low_var_kl"): "kl_loss_type",
    Instead("set algorithm.clip_ratio_low and algorithm.clip_ratio_high"): "clip_ratio",
    Instead("set algorithm.clip_ratio_c, which bounds the ratio where the advantage is negative"): "delta",
    Instead(
        "set algorithm.loss, algorithm.loss_agg_mode and algorithm.advantage_estimator; docs/algorithms.md has a table"
    ): "loss_type",
    Instead("set algorithm.loss"): "loss_mode",
    Instead("set algorithm.loss to 'gspo' (for sequence) or leave it out (for token)"): "importance_sampling_level",
    Instead("set algorithm.normalize_by_std to true (for group) or false (for none)"): "scale_rewards",
    Instead("set algorithm.normalize_by_std to false"): "disable_grpo_std_normalization",
    Instead(
        "leave it out; algorithm.advantage_estimator 'reinforce++-baseline' normalizes advantages over the batch"
    ): "normalize_advantages",
    Instead("leave it out: policy and critic learn from the first step on"): "critic_warmup",
    Instead(
        "leave it out: the KL term compares with the model that the run began with"
    ): "ref_load ref_model sync_ref_model ref_model_sync_steps",
    Instead("set algorithm.old_logprobs to 'behaviour', the default"): "use_rollout_logprobs bypass_mode",
    Instead(
        "set algorithm.importance_sampling.type to 'tis' and algorithm.old_logprobs to 'recompute' instead"
    ): "use_tis vllm_importance_sampling_correction",
    Instead(
        "set algorithm.importance_sampling.type to 'tis' (for token) or 'seq_tis' (for sequence) and"
        " algorithm.old_logprobs to 'recompute' instead"
    ): "rollout_is rollout_correction vllm_importance_sampling_mode",
    # Which groups are trained
    Instead(
        "set algorithm.dynamic_sampling to true, which drops groups of equal scores; there is no other filter"
    ): "dynamic_sampling_filter_path filter_groups",
    Instead("set algorithm.max_useless_groups, a number of groups in a row"): "max_num_gen_batches",
    Instead("set algorithm.overlong.buffer_length and algorithm.overlong.penalty_factor"): "overlong_buffer",
    # Schedule
    Instead("set schedule.preset to 'active-partial'"): "partial_rollout",
    Instead("set algorithm.stale_tokens to 'mask-prefix'"): "mask_offpolicy_in_partial_rollout",
    Instead(
        "set schedule.over_provision_prompts, a multiple of schedule.rollout_batch_size such as 1.25"
    ): "over_sampling_batch_size over_sample_rate max_prompts_ratio",
    Instead("set schedule.max_staleness, in weight versions, and schedule.preset; docs/schedules.md says which"): (
        "staleness_threshold max_off_policy_steps max_off_policy_threshold max_head_offpolicyness "
        "max_staleness_steps max_trajectory_age_steps max_policy_age async_generation_ratio async_queue_size"
    ),
    Instead(
        "leave it out: weights are published after every step, and the preset says when instances take them"
    ): "update_weights_interval parameter_sync_step trigger_parameter_sync_step",
    # Rewards and data
    Instead(
        "set reward.functions to a built-in function, to 'path/to/file.py:function' or to 'package.module:function'"
    ): "custom_reward_function custom_rm_path rm_type reward_manager reward_model_path",
    Instead("write reward.functions as tables with function and weight"): "reward_weights",
    Instead("call the service in a reward function of your own: reward.functions"): "remote_rm_url rm_url",
    Instead("set data.train to 'hf:owner/name'"): "dataset_name",
    Instead("set data.train to 'hf:owner/name:split'"): "dataset_train_split",
    Instead("leave it out: prompts above data.max_prompt_length are dropped, and counted"): "filter_overlong_prompts",
    Instead("leave it out: prompts above data.max_prompt_length are dropped, none is cut"): "truncation",
    Instead("write it into the prompts, as a message with role 'system'"): "system_prompt",
    Instead(
        "leave it out: a reward function gets each column that it names as a parameter"
    ): "reward_key reward_fn_key metadata_key remove_unused_columns",
    # Model and optimizer
    Instead("set model.dtype to 'bfloat16'"): "bf16",
    Instead("set model.dtype to 'bfloat16'; there is no float16"): "fp16",
    Instead("set model.lora_rank above 0"): "use_peft",
    Instead("leave it out: LoRA adapters have no dropout here"): "lora_dropout",
    Instead("there is no such setting: models whose code comes with their files cannot be used"): "trust_remote_code",
    Instead("leave it out: training uses PyTorch's scaled dot product attention"): "attn_implementation",
    Instead("set trainer.torch_compile, which compiles the layers of the model"): "use_torch_compile",
    Instead("set trainer.gradient_checkpointing to true"): "recompute_granularity",
    Instead("set trainer.warmup_steps to a number of steps"): "warmup_ratio lr_warmup_steps_ratio lr_warmup_fraction",
    Instead("set trainer.betas to [beta1, beta2]"): "adam_beta1 adam_beta2",
    Instead("leave it out: the optimizer is AdamW"): "optim optimizer",
    Instead("leave it out: 'linear' and 'cosine' end at 0"): "min_lr min_lr_ratio",
    # Run directory and loggers
    Instead(
        "set logger, to wandb for example; the console and metrics.jsonl always get the metrics"
    ): "report_to use_wandb use_tensorboard trainer.logger",
    Instead(
        "leave it out: every step is logged, and the report shows responses"
    ): "logging_steps logging_strategy log_completions",
    Instead(
        "leave it out: the same command continues an unfinished run, unless resume is 'never'"
    ): "resume_mode resume_from_checkpoint load load_checkpoint_path",
    Instead("set output_dir; checkpoints are in its folder checkpoints"): "save",
    Instead("set save_interval to a number of steps"): "save_strategy",
    Instead("set rollout.from_run to the run directory whose responses are trained"): "debug_train_only",
    Instead(
        "leave it out: `tailrace export` writes a model directory, which `hf upload` can upload"
    ): "push_to_hub hub_model_id",
    Instead("set seed, which holds for the whole run"): "data_seed rollout_seed data.seed",
}

OTHER_NAMES: dict[str, str | Same | Instead] = {
    name: answer for answer, names in TABLE.items() for name in names.split()
}
