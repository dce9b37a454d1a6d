"""The C types of the classes in `encode.py`, which Cython reads with it. What has none is a Python object."""

cimport cython

@cython.final
cdef class Output:
    cdef object buffer
    cdef unsigned char* bytes
    cdef Py_ssize_t capacity, used
    cdef void point_to(self, buffer)
    cdef inline int headroom(self, Py_ssize_t size) noexcept nogil
    cdef int grow(self, Py_ssize_t size) noexcept with gil
    cdef inline int number(self, long long value) noexcept nogil
    cdef inline int copy(self, const unsigned char* source, Py_ssize_t at, Py_ssize_t length) noexcept nogil

cdef class _View:
    cdef object buffer
    cdef const unsigned char* bytes
    cdef int* ints
    cdef long long* longs

cdef class Part:
    cdef Output out
    cdef int place
    cdef Py_ssize_t start
    cdef int write(self, Py_ssize_t row) noexcept nogil
    cdef inline int bad(self, int code) noexcept nogil

cdef class OfFixed(Part):
    cdef _View data

cdef class WriteBoolean(OfFixed):
    pass

cdef class WriteNumber(OfFixed):
    cdef bint is_long

cdef class WriteFixed(OfFixed):
    cdef Py_ssize_t width

cdef class WriteBinary(Part):
    cdef _View ends, data

cdef class WriteDecimal(OfFixed):
    cdef Py_ssize_t width, size

cdef class WriteUuid(WriteBinary):
    pass

cdef class WriteDuration(OfFixed):
    pass

cdef class _Parts:
    cdef list kept
    cdef object addresses
    cdef void** items
    cdef Py_ssize_t count

cdef class WriteRecord(Part):
    cdef _Parts parts

cdef class WriteItems(Part):
    cdef _View ends
    cdef Part item

cdef class WriteNullable(Part):
    cdef _View validity
    cdef bint has_nulls
    cdef Part part
    cdef int null_branch, branch

cdef class WriteUnion(Part):
    cdef _View kinds, places
    cdef _Parts branches
