#pragma once
enum cublasStatus_t : int;
typedef struct cublasContext* cublasHandle_t;
