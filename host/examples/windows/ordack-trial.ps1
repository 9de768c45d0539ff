<#
.SYNOPSIS
    The Windows side of hil/test_windows.py, which runs on a Linux machine and tries MSMQ on this one.

.DESCRIPTION
    Needs Windows PowerShell 5.1, which is part of Windows, the feature MSMQ, and an administrator:

        powershell.exe -ExecutionPolicy Bypass -File .\ordack-trial.ps1

    It makes the private queues `ordack-trial` and `ordack-trial-probe`, and does what messages in the first ask for: make queues, send and receive
    messages, look into the dead-letter queue and the journal. It touches only queues whose names begin with
    `ordack-trial`, and, in the dead-letter queue and the journal, only messages of a trial. Ctrl-C ends it and
    removes all of that. Whoever reaches TCP port 1801 of this machine can use it: let it run for the trial only.

    No ordack has been tried with a Windows yet. What this script says in red is worth sending to the makers of ordack.
#>

Set-StrictMode -Version 2
$ErrorActionPreference = 'Stop'

$version = 1
$prefix = 'ordack-trial'
$places = @{
    'deadletters' = 'FormatName:DIRECT=OS:.\SYSTEM$;DEADXACT'
    'journal'     = 'FormatName:DIRECT=OS:.\SYSTEM$;JOURNAL'
}

# ---- what must be there

function Stop-Because([string] $text) {
    Write-Host $text -ForegroundColor Red
    exit 1
}

if ($PSVersionTable.PSVersion.Major -ge 6) {
    Stop-Because 'This PowerShell has no System.Messaging. Start the script with powershell.exe, which is 5.1, not with pwsh.exe.'
}
$identity = New-Object Security.Principal.WindowsPrincipal ([Security.Principal.WindowsIdentity]::GetCurrent())
if (-not $identity.IsInRole([Security.Principal.WindowsBuiltInRole]::Administrator)) {
    Stop-Because 'Start it as an administrator: it gives rights to queues, and reads the dead-letter queue.'
}
$service = Get-Service -Name 'MSMQ' -ErrorAction SilentlyContinue
if ($null -eq $service) {
    Stop-Because ('MSMQ is not installed. On Windows 10 and 11: Enable-WindowsOptionalFeature -Online -FeatureName MSMQ-Server -All. ' +
        'On Windows Server: Install-WindowsFeature MSMQ-Server.')
}
if ($service.Status -ne 'Running') {
    Stop-Because 'The service MSMQ does not run: Start-Service MSMQ.'
}
try {
    Add-Type -AssemblyName 'System.Messaging'
} catch {
    Stop-Because 'System.Messaging is missing: it comes with .NET Framework 4 and the feature MSMQ.'
}

# ---- queues and messages

function Open-Queue([string] $path) {
    $queue = New-Object System.Messaging.MessageQueue $path
    foreach ($name in 'Acknowledgment', 'AppSpecific', 'CorrelationId', 'Extension', 'Priority', 'Recoverable') {
        $queue.MessageReadPropertyFilter.$name = $true
    }
    $queue.MessageReadPropertyFilter.DefaultBodySize = 1100000
    $queue.MessageReadPropertyFilter.DefaultExtensionSize = 255
    return , $queue
}

function Get-OwnQueue {
    # The names of all queues of trials that are here.
    foreach ($queue in [System.Messaging.MessageQueue]::GetPrivateQueuesByMachine('.')) {
        $name = $queue.QueueName -replace '^private\$\\', ''
        if ($name.StartsWith($prefix)) { $name }
    }
}

function New-OwnQueue([string] $name, [bool] $transactional) {
    if (-not $name.StartsWith($prefix)) { throw "the queue $name is none of a trial" }
    $queue = [System.Messaging.MessageQueue]::Create(".\private`$\$name", $transactional)
    # Messages from ordack have no Windows account. The accounts by number: their names differ with Windows' language.
    foreach ($sid in 'S-1-5-7', 'S-1-1-0') {
        $account = (New-Object Security.Principal.SecurityIdentifier $sid).Translate([Security.Principal.NTAccount]).Value
        $queue.SetPermissions($account, [System.Messaging.MessageQueueAccessRights]::WriteMessage)
    }
    $queue.Close()
}

function Remove-OwnQueue([string] $start) {
    # How many queues with names that begin so were removed.
    $count = 0
    foreach ($name in @(Get-OwnQueue)) {
        if ($name.StartsWith($start)) {
            [System.Messaging.MessageQueue]::Delete(".\private`$\$name")
            $count++
        }
    }
    return $count
}

function Find-Message([string] $place, [string] $start) {
    # Messages in the dead-letter queue or the journal with labels that begin so.
    $queue = Open-Queue $places[$place]
    $found = New-Object Collections.ArrayList
    $messages = $queue.GetMessageEnumerator2()
    while ($messages.MoveNext()) {
        $message = $messages.Current
        if ($message.Label.StartsWith($start)) { [void] $found.Add($message) }
    }
    $queue.Close()
    return , $found
}

function Remove-Kept([string] $start) {
    # How many messages of a trial were removed from the dead-letter queue and the journal.
    $count = 0
    foreach ($place in $places.Keys) {
        $queue = Open-Queue $places[$place]
        foreach ($message in (Find-Message $place $start)) {
            [void] $queue.ReceiveById($message.Id)
            $count++
        }
        $queue.Close()
    }
    return $count
}

function Receive-One($queue, [double] $seconds, [bool] $transactional) {
    # A message, or $null if none comes in time.
    $type = [System.Messaging.MessageQueueTransactionType]::None
    if ($transactional) { $type = [System.Messaging.MessageQueueTransactionType]::Single }
    try {
        return $queue.Receive([TimeSpan]::FromSeconds([Math]::Max(0, $seconds)), $type)
    } catch {
        $reason = $_.Exception
        while ($null -ne $reason -and $reason -isnot [System.Messaging.MessageQueueException]) { $reason = $reason.InnerException }
        if ($null -ne $reason -and $reason.MessageQueueErrorCode -eq [System.Messaging.MessageQueueErrorCode]::IOTimeout) { return $null }
        throw
    }
}

function Send-One([string] $to, $message, [string] $delivery) {
    $queue = New-Object System.Messaging.MessageQueue "FormatName:$to"
    $message.Recoverable = $delivery -ne 'express'
    $type = [System.Messaging.MessageQueueTransactionType]::None
    if ($delivery -eq 'transactional') { $type = [System.Messaging.MessageQueueTransactionType]::Single }
    $queue.Send($message, $type)
    $queue.Close()
}

function Get-Body($message) {
    $bytes = New-Object IO.MemoryStream
    $message.BodyStream.CopyTo($bytes)
    return , $bytes.ToArray()
}

function New-Body([int] $number, [int] $size) {
    # What every message has in it: fewer bytes than size, but for number 0, and others than the next one.
    $bytes = New-Object byte[] ($size - ($number * 37) % [Math]::Min($size, 500))
    for ($i = 0; $i -lt $bytes.Length; $i++) { $bytes[$i] = ($number + $i) % 251 }
    return , $bytes
}

function Get-Hex($bytes) {
    return -join ($bytes | ForEach-Object { $_.ToString('x2') })
}

function Get-Setting([string] $name) {
    $values = Get-ItemProperty -Path 'HKLM:\SOFTWARE\Microsoft\MSMQ\Parameters' -ErrorAction SilentlyContinue
    if ($null -ne $values -and $values.PSObject.Properties.Name -contains $name) { return $values.$name }
    return 0
}

# ---- the commands: each takes $c, with the fields that ordack sends, and returns what it answers

$commands = @{
    'hello' = {
        param($c)
        @{
            version    = $version
            computer   = $env:COMPUTERNAME
            system     = [Environment]::OSVersion.VersionString
            powershell = $PSVersionTable.PSVersion.ToString()
            workgroup  = [bool] (Get-Setting 'Workgroup')
            hardened   = [bool] (Get-Setting 'hardened_msmq')
            time       = ([DateTime]::UtcNow - [DateTime] '1970-01-01').TotalSeconds
            queues     = @(Get-OwnQueue | Where-Object { $_ -ne $prefix -and $_ -ne "$prefix-probe" })
        }
    }
    'create' = {
        param($c)
        New-OwnQueue $c.queue $c.transactional
        @{}
    }
    'send' = {
        param($c)
        for ($n = $c.first; $n -lt $c.first + $c.count; $n++) {
            $message = New-Object System.Messaging.Message
            $message.Label = "$($c.run) $($c.key) $n"
            $message.BodyStream = New-Object IO.MemoryStream (, (New-Body $n $c.size))
            $message.UseDeadLetterQueue = $c.deadletter
            $message.UseJournalQueue = $c.journal
            $message.TimeToReachQueue = [TimeSpan]::FromSeconds($c.ttrq)
            Send-One $c.to $message $c.delivery
        }
        @{}
    }
    'receive' = {
        param($c)
        $queue = Open-Queue ".\private`$\$($c.queue)"
        $transactional = $queue.Transactional
        $labels = New-Object Collections.ArrayList
        $sum = [Security.Cryptography.SHA256]::Create()
        $end = [DateTime]::UtcNow.AddSeconds($c.seconds)
        while ($labels.Count -lt $c.count) {
            $message = Receive-One $queue ($end - [DateTime]::UtcNow).TotalSeconds $transactional
            if ($null -eq $message) { break }
            [void] $labels.Add($message.Label)
            $body = Get-Body $message
            [void] $sum.TransformBlock($body, 0, $body.Length, $null, 0)
        }
        [void] $sum.TransformFinalBlock((New-Object byte[] 0), 0, 0)
        $queue.Close()
        @{ labels = @($labels); sha256 = Get-Hex $sum.Hash }
    }
    'echo' = {
        param($c)
        $queue = Open-Queue ".\private`$\$($c.queue)"
        $came = Receive-One $queue $c.seconds $false
        $queue.Close()
        if ($null -eq $came) { throw "no message came to $($c.queue)" }
        $body = Get-Body $came
        $back = New-Object System.Messaging.Message
        $back.Label = $came.Label
        $back.Priority = $came.Priority
        $back.AppSpecific = $came.AppSpecific
        $back.Extension = $came.Extension
        $back.CorrelationId = $came.CorrelationId
        $back.BodyStream = New-Object IO.MemoryStream (, $body)
        $back.TimeToReachQueue = [TimeSpan]::FromSeconds($c.ttrq)
        Send-One $c.to $back 'recoverable'
        @{
            label       = $came.Label
            priority    = [int] $came.Priority
            tag         = $came.AppSpecific
            extension   = Get-Hex $came.Extension
            correlation = $came.CorrelationId
            recoverable = $came.Recoverable
            sha256      = Get-Hex ([Security.Cryptography.SHA256]::Create().ComputeHash($body))
        }
    }
    'look' = {
        param($c)
        $found = Find-Message $c.place "$($c.run) $($c.key) "
        @{ classes = @($found | ForEach-Object { [int] $_.Acknowledgment }) }
    }
    'purge' = {
        param($c)
        $queue = Open-Queue ".\private`$\$($c.queue)"
        $queue.Purge()
        $queue.Close()
        @{}
    }
    'end' = {
        param($c)
        @{ queues = Remove-OwnQueue "$prefix-$($c.run)"; messages = Remove-Kept "$($c.run) " }
    }
}

# ---- take a command, do it, answer

function Invoke-Request($message) {
    $text = [Text.Encoding]::UTF8.GetString((Get-Body $message))
    try {
        $c = ConvertFrom-Json $text
        $isNew = $commands.ContainsKey($c.command) -and $c.reply -and $c.number -gt [int] $done[$c.run]
    } catch {
        $isNew = $false
    }
    if (-not $isNew) {
        Write-Host "not understood, or done already: $($message.Label)"
        return
    }
    $done[$c.run] = $c.number
    Write-Host "$(Get-Date -Format T) $($message.Label)"
    $answer = @{ number = $c.number; ok = $true }
    try {
        $answer += & $commands[$c.command] $c
    } catch {
        Write-Host $_ -ForegroundColor Red
        $answer = @{ number = $c.number; ok = $false; error = "$_" }
    }
    $back = New-Object System.Messaging.Message
    $back.Label = $message.Label
    $back.BodyStream = New-Object IO.MemoryStream (, [Text.Encoding]::UTF8.GetBytes((ConvertTo-Json $answer -Compress)))
    $back.TimeToReachQueue = [TimeSpan]::FromMinutes(10)
    Send-One $c.reply $back 'recoverable'
}

$done = @{}
$removed = Remove-OwnQueue $prefix
if ($removed) { Write-Host "removed $removed queues of earlier trials" }
New-OwnQueue $prefix $false
New-OwnQueue "$prefix-probe" $true
$control = Open-Queue ".\private`$\$prefix"
try {
    Write-Host "Ready. On the Linux machine: ORDACK_WINDOWS=ADDRESS pytest hil/test_windows.py, with an address of this machine:"
    [Net.Dns]::GetHostAddresses('') | Where-Object { $_.AddressFamily -eq 'InterNetwork' } | ForEach-Object { Write-Host "    $_" }
    Write-Host 'Ctrl-C ends this script.'
    while ($true) {
        $message = Receive-One $control 1 $false
        if ($null -ne $message) { Invoke-Request $message }
    }
} finally {
    $control.Close()
    [void] (Remove-OwnQueue $prefix)
    foreach ($run in @($done.Keys)) { [void] (Remove-Kept "$run ") }
}
