"""The C types of the classes in `encode.py`, which Cython reads with it. What has none is a Python object."""

cimport cython

@cython.final
cdef class _Nulls:
    cdef object buffer
    cdef const unsigned char* bits
    cdef Py_ssize_t first  # where in its buffers the column starts
    cdef bint is_absent, is_mixed
    cdef inline bint at(self, Py_ssize_t slot) noexcept nogil

@cython.final
cdef class _Blobs:
    cdef list buffers
    cdef _Nulls nulls
    cdef const unsigned char* data
    cdef int* ends
    cdef long long* long_ends
    cdef bint is_large
    cdef inline Py_ssize_t begin(self, Py_ssize_t slot) noexcept nogil
    cdef inline Py_ssize_t length(self, Py_ssize_t slot) noexcept nogil
    cdef inline long long size(self, Py_ssize_t slot) noexcept nogil
    cdef inline Py_ssize_t put(self, unsigned char* target, Py_ssize_t at, Py_ssize_t slot) noexcept nogil

@cython.final
cdef class _HeaderLists:
    cdef object buffer
    cdef _Nulls nulls, null_entries
    cdef _Blobs keys, values
    cdef int* ends
    cdef inline Py_ssize_t count(self, Py_ssize_t slot) noexcept nogil
    cdef long long size(self, Py_ssize_t slot) noexcept nogil
    cdef Py_ssize_t put(self, unsigned char* target, Py_ssize_t at, Py_ssize_t slot) noexcept nogil

@cython.final
cdef class _Rows:
    cdef Py_ssize_t count
    cdef long long now
    cdef _Blobs keys, values
    cdef _HeaderLists headers
    cdef _Nulls no_partition, no_time
    cdef int* partitions
    cdef long long* times
    cdef long long per_milli
    cdef Py_ssize_t refused  # the row that cannot be encoded, if there is one
    cdef list buffers
    cdef int* sizes  # by row: bytes of key, value and headers
    cdef int* targets  # by row: the partition
    cdef int* order  # the rows of partition 0, of partition 1, and so on
    cdef long long* ends  # by partition: where in `order` its rows end
    cdef long long* totals  # by partition: bytes that its rows take at most
    cdef inline long long time(self, Py_ssize_t row) noexcept nogil
    cdef int check(self, Py_ssize_t row, int partitions) noexcept nogil
    cdef void sort(self, int partitions) noexcept nogil
    cdef refusal(self, int status, int partitions)

@cython.final
cdef class _Partitioner:
    cdef int partitions, sticky
    cdef long long enough  # bytes of rows without a key, after which the next partition has its turn
    cdef inline int after(self, int partition) noexcept nogil
    cdef int place_all(self, _Rows rows) noexcept nogil
    cdef inline int of_key(self, const unsigned char* source, Py_ssize_t at, Py_ssize_t length) noexcept nogil

cdef class _OpenBatch:
    cdef object partition, producer
    cdef Py_ssize_t limit
    cdef long long sequence  # of the first record
    cdef long long count, base_time, max_time
    cdef object buffer
    cdef unsigned char* data
    cdef Py_ssize_t capacity, used
    cdef void set_buffer(self, buffer)
    cdef void reserve(self, long long pending, long long first)
    cdef Py_ssize_t write(self, _Rows rows, Py_ssize_t at, Py_ssize_t end) noexcept nogil
