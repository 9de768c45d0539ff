// network_lan.c: network.LAN: lwIP on a LAN9118. It runs while MicroPython waits; the interrupt only wakes it.
#include <string.h>

#include "py/mphal.h"
#include "py/runtime.h"
#include "extmod/modnetwork.h"
#include "lwip/dhcp.h"
#include "lwip/etharp.h"
#include "lwip/netif.h"
#include "lwip/timeouts.h"
#include "netif/ethernet.h"

#include "board.h"

#define TIMERS_EVERY_MS 10
#define NIC_FRAME_MAX 1514 // bytes, without the checksum

// ---- the LAN9118, through its FIFOs

#define REGISTER(offset) (*(volatile uint32_t *)(ETHERNET_BASE + (offset)))
#define RX_DATA REGISTER(0x00)
#define TX_DATA REGISTER(0x20)
#define RX_STATUS REGISTER(0x40)
#define TX_STATUS REGISTER(0x48)
#define INTERRUPT_CONFIG REGISTER(0x54)
#define INTERRUPT_STATUS REGISTER(0x58)
#define INTERRUPT_ENABLE REGISTER(0x5C)
#define FIFO_INTERRUPT REGISTER(0x68)
#define TX_CONFIG REGISTER(0x70)
#define HARDWARE_CONFIG REGISTER(0x74)
#define RX_FIFO_INFO REGISTER(0x7C)
#define TX_FIFO_INFO REGISTER(0x80)
#define MAC_COMMAND REGISTER(0xA4)
#define MAC_DATA REGISTER(0xA8)

enum {
    // behind MAC_COMMAND
    MAC_CONTROL = 1,
    MAC_ADDRESS_HIGH = 2,
    MAC_ADDRESS_LOW = 3,
};

#define MAC_BUSY (1u << 31)
#define MAC_READ (1u << 30)
#define MAC_FULL_DUPLEX (1u << 20)
#define MAC_TX_ENABLE (1u << 3)
#define MAC_RX_ENABLE (1u << 2)
#define HARDWARE_RESET (1u << 0)
#define HARDWARE_MUST_BE_ONE (1u << 20)
#define HARDWARE_TX_FIFO_5_KIB (5u << 16)
#define INTERRUPT_PUSH_PULL_HIGH ((1u << 8) | (1u << 4) | (1u << 0))
#define INTERRUPT_RX_STATUS_LEVEL (1u << 3)
#define TX_ON (1u << 1)
#define TX_FIRST_SEGMENT (1u << 13)
#define TX_LAST_SEGMENT (1u << 12)
#define RX_ERROR (1u << 15)
#define CHECKSUM_BYTES 4

static void mac_command(uint32_t command)
{
    MAC_COMMAND = MAC_BUSY | command;
    while (MAC_COMMAND & MAC_BUSY) {
    }
}

static uint32_t mac_read(uint32_t number)
{
    mac_command(MAC_READ | number);
    return MAC_DATA;
}

static void mac_write(uint32_t number, uint32_t value)
{
    MAC_DATA = value;
    mac_command(number);
}

// Enables the interrupt for the next frame, which wakes the processor once.
static void nic_wake_again(void)
{
    INTERRUPT_STATUS = INTERRUPT_RX_STATUS_LEVEL;
    INTERRUPT_ENABLE = INTERRUPT_RX_STATUS_LEVEL;
}

// mac receives the address of QEMU's mac=.
static void nic_start(uint8_t mac[6])
{
    HARDWARE_CONFIG = HARDWARE_RESET;
    while (HARDWARE_CONFIG & HARDWARE_RESET) {
    }
    HARDWARE_CONFIG = HARDWARE_MUST_BE_ONE | HARDWARE_TX_FIFO_5_KIB;
    FIFO_INTERRUPT = 0; // at the first frame
    uint32_t low = mac_read(MAC_ADDRESS_LOW);
    uint32_t high = mac_read(MAC_ADDRESS_HIGH);
    for (int i = 0; i < 4; i++) {
        mac[i] = low >> 8 * i;
    }
    mac[4] = high;
    mac[5] = high >> 8;
    TX_CONFIG = TX_ON;
    mac_write(MAC_CONTROL, MAC_FULL_DUPLEX | MAC_TX_ENABLE | MAC_RX_ENABLE);
    INTERRUPT_CONFIG = INTERRUPT_PUSH_PULL_HIGH;
    nic_wake_again();
    NVIC_EnableIRQ(ETHERNET_IRQn);
}

static void nic_stop(void)
{
    NVIC_DisableIRQ(ETHERNET_IRQn);
    INTERRUPT_ENABLE = 0;
    mac_write(MAC_CONTROL, 0);
    TX_CONFIG = 0;
}

static void nic_send(const void *frame, size_t size)
{
    const uint32_t *words = frame;

    TX_DATA = TX_FIRST_SEGMENT | TX_LAST_SEGMENT | size;
    TX_DATA = size << 16 | size;
    for (size_t i = 0; i < (size + 3) / 4; i++) {
        TX_DATA = words[i];
    }
    while (TX_FIFO_INFO >> 16 & 0xFF) {
        (void)TX_STATUS; // one unused status for each sent frame
    }
}

// Copies the next complete frame and returns its size; 0: none. frame: with room for the checksum.
static size_t nic_receive(void *frame)
{
    while (RX_FIFO_INFO >> 16 & 0xFF) {
        uint32_t status = RX_STATUS;
        size_t size = status >> 16 & 0x3FFF;
        bool whole = !(status & RX_ERROR) && size > CHECKSUM_BYTES && size <= NIC_FRAME_MAX + CHECKSUM_BYTES;
        uint32_t *words = frame;

        for (size_t i = 0; i < (size + 3) / 4; i++) {
            uint32_t word = RX_DATA;
            if (whole) {
                words[i] = word;
            }
        }
        if (whole) {
            return size - CHECKSUM_BYTES;
        }
    }
    return 0;
}

void ETHERNET_Handler(void)
{
    INTERRUPT_ENABLE = 0;
    board_wake();
}

typedef struct {
    mp_obj_base_t base;
    struct netif netif;
    bool active;
} lan_t;

static lan_t lan = {.base = {&network_lan_type}};

// A frame with its checksum, as whole words.
static uint32_t frame[(NIC_FRAME_MAX + 4 + 3) / 4];

u32_t sys_now(void)
{
    return mp_hal_ticks_ms();
}

// ---- the interface

static err_t send_frame(struct netif *netif, struct pbuf *packet)
{
    if (packet->tot_len > NIC_FRAME_MAX) {
        return ERR_BUF;
    }
    pbuf_copy_partial(packet, frame, packet->tot_len, 0);
    nic_send(frame, packet->tot_len);
    return ERR_OK;
}

static err_t netif_start(struct netif *netif)
{
    netif->linkoutput = send_frame;
    netif->output = etharp_output;
    netif->mtu = 1500;
    netif->name[0] = 'e';
    netif->name[1] = '0';
    netif->hwaddr_len = sizeof(netif->hwaddr);
    netif->flags = NETIF_FLAG_BROADCAST | NETIF_FLAG_ETHARP | NETIF_FLAG_ETHERNET;
    nic_start(netif->hwaddr);
    return ERR_OK;
}

void ethernet_poll(void)
{
    static bool inside; // lwIP's callbacks may wait, and so call this again
    static uint64_t timers_at;

    if (inside || !lan.active) {
        return;
    }
    inside = true;
    for (size_t size; (size = nic_receive(frame)) != 0;) {
        struct pbuf *packet = pbuf_alloc(PBUF_RAW, size, PBUF_POOL);
        if (packet == NULL) {
            continue; // as if lost on the line
        }
        pbuf_take(packet, frame, size);
        if (lan.netif.input(packet, &lan.netif) != ERR_OK) {
            pbuf_free(packet);
        }
    }
    nic_wake_again();
    if (clock_ms() >= timers_at) {
        timers_at = clock_ms() + TIMERS_EVERY_MS;
        sys_check_timeouts();
    }
    inside = false;
}

static void ethernet_up(void)
{
    netif_add(&lan.netif, IP4_ADDR_ANY4, IP4_ADDR_ANY4, IP4_ADDR_ANY4, NULL, netif_start, ethernet_input);
    netif_set_hostname(&lan.netif, mod_network_hostname_data);
    netif_set_default(&lan.netif);
    netif_set_up(&lan.netif);
    netif_set_link_up(&lan.netif);
    lan.active = true;
    dhcp_start(&lan.netif);
}

void ethernet_down(void)
{
    if (lan.active) {
        lan.active = false;
        dhcp_stop(&lan.netif);
        netif_remove(&lan.netif);
        nic_stop();
    }
}

// ---- network.LAN

static mp_obj_t lan_make_new(const mp_obj_type_t *type, size_t n_args, size_t n_kw, const mp_obj_t *args)
{
    mp_arg_check_num(n_args, n_kw, 0, 0, false);
    mod_network_register_nic(MP_OBJ_FROM_PTR(&lan));
    return MP_OBJ_FROM_PTR(&lan);
}

// active([on]): True gets the address by DHCP, unless ifconfig() gives one
static mp_obj_t lan_active(size_t n_args, const mp_obj_t *args)
{
    if (n_args == 2) {
        bool on = mp_obj_is_true(args[1]);
        if (on && !lan.active) {
            ethernet_up();
        } else if (!on) {
            ethernet_down();
        }
    }
    return mp_obj_new_bool(lan.active);
}
static MP_DEFINE_CONST_FUN_OBJ_VAR_BETWEEN(lan_active_obj, 1, 2, lan_active);

static mp_obj_t lan_isconnected(mp_obj_t self)
{
    return mp_obj_new_bool(lan.active && !ip4_addr_isany_val(*netif_ip4_addr(&lan.netif)));
}
static MP_DEFINE_CONST_FUN_OBJ_1(lan_isconnected_obj, lan_isconnected);

static mp_obj_t lan_ifconfig(size_t n_args, const mp_obj_t *args)
{
    return mod_network_nic_ifconfig(&lan.netif, n_args - 1, args + 1);
}
static MP_DEFINE_CONST_FUN_OBJ_VAR_BETWEEN(lan_ifconfig_obj, 1, 2, lan_ifconfig);

static mp_obj_t lan_ipconfig(size_t n_args, const mp_obj_t *args, mp_map_t *keywords)
{
    return mod_network_nic_ipconfig(&lan.netif, n_args - 1, args + 1, keywords);
}
static MP_DEFINE_CONST_FUN_OBJ_KW(lan_ipconfig_obj, 1, lan_ipconfig);

// config("mac")
static mp_obj_t lan_config(mp_obj_t self, mp_obj_t name)
{
    if (mp_obj_str_get_qstr(name) != MP_QSTR_mac) {
        mp_raise_ValueError(MP_ERROR_TEXT("unknown config param"));
    }
    return mp_obj_new_bytes(lan.netif.hwaddr, sizeof(lan.netif.hwaddr));
}
static MP_DEFINE_CONST_FUN_OBJ_2(lan_config_obj, lan_config);

static const mp_rom_map_elem_t lan_locals_table[] = {
    {MP_ROM_QSTR(MP_QSTR_active), MP_ROM_PTR(&lan_active_obj)},
    {MP_ROM_QSTR(MP_QSTR_isconnected), MP_ROM_PTR(&lan_isconnected_obj)},
    {MP_ROM_QSTR(MP_QSTR_ifconfig), MP_ROM_PTR(&lan_ifconfig_obj)},
    {MP_ROM_QSTR(MP_QSTR_ipconfig), MP_ROM_PTR(&lan_ipconfig_obj)},
    {MP_ROM_QSTR(MP_QSTR_config), MP_ROM_PTR(&lan_config_obj)},
};
static MP_DEFINE_CONST_DICT(lan_locals, lan_locals_table);

MP_DEFINE_CONST_OBJ_TYPE(network_lan_type, MP_QSTR_LAN, MP_TYPE_FLAG_NONE, make_new, lan_make_new, locals_dict,
                         &lan_locals);
