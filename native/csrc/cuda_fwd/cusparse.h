#pragma once
enum cusparseStatus_t : int;
typedef struct cusparseContext* cusparseHandle_t;
